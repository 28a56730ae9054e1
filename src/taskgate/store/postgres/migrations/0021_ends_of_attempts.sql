-- When an attempt ended and why, for the timeline of its task; and the definitions that were accepted before the current one.
ALTER TABLE attempts ADD COLUMN ended_ms bigint;
ALTER TABLE attempts ADD COLUMN why text NOT NULL DEFAULT '';

CREATE TABLE earlier_pins (
    server text NOT NULL,
    tool   text NOT NULL,
    at_ms  bigint NOT NULL,
    doc    bytea NOT NULL,
    by     text NOT NULL,
    PRIMARY KEY (server, tool, at_ms)
);
