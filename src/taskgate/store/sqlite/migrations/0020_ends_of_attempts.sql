-- When an attempt ended and why, for the timeline of its task; and the definitions that were accepted before the current one.
ALTER TABLE attempts ADD COLUMN ended_ms BIGINT;
ALTER TABLE attempts ADD COLUMN why TEXT NOT NULL DEFAULT '';

CREATE TABLE earlier_pins (
    server TEXT NOT NULL,
    tool   TEXT NOT NULL,
    at_ms  BIGINT NOT NULL,
    doc    BLOB NOT NULL,
    by     TEXT NOT NULL,
    PRIMARY KEY (server, tool, at_ms)
) WITHOUT ROWID;
