-- The newest step of each script, and the tool calls that scripts made. A call is a task; here is which script made it, at which line,
-- and the step with which the script received its outcome.
CREATE TABLE scripts (
    task_id  TEXT PRIMARY KEY,
    step     INTEGER NOT NULL,
    doc      BLOB NOT NULL,
    snapshot BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE script_calls (
    script_id      TEXT NOT NULL,
    number         INTEGER NOT NULL,
    line           INTEGER NOT NULL,
    task_id        TEXT NOT NULL,
    delivered_step INTEGER,
    PRIMARY KEY (script_id, number)
) WITHOUT ROWID;
