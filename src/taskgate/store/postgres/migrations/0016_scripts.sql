-- The newest step of each script, and the tool calls that scripts made. A call is a task; here is which script made it, at which line,
-- and the step with which the script received its outcome.
CREATE TABLE scripts (
    task_id  text COLLATE "C" PRIMARY KEY,
    step     bigint NOT NULL,
    doc      bytea NOT NULL,
    snapshot bytea NOT NULL
);
CREATE TABLE script_calls (
    script_id      text COLLATE "C" NOT NULL,
    number         bigint NOT NULL,
    line           bigint NOT NULL,
    task_id        text COLLATE "C" NOT NULL,
    delivered_step bigint,
    PRIMARY KEY (script_id, number)
);
