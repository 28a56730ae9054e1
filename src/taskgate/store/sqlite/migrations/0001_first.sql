-- Times are milliseconds since 1970 by the store's clock. `doc` holds the whole value as JSON; the columns beside it are
-- what the store searches or guards by, and `owner` and `fence` live in columns only. Tables are WITHOUT ROWID where
-- they are found by a key of their own: one tree to write instead of two.

CREATE TABLE owners (
    owner      TEXT PRIMARY KEY,
    fence      BIGINT NOT NULL,
    started_ms BIGINT NOT NULL,
    seen_ms    BIGINT NOT NULL,
    retired    INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE tasks (
    id               TEXT PRIMARY KEY,
    caller           TEXT NOT NULL,
    server           TEXT NOT NULL,
    state            TEXT NOT NULL,
    owner            TEXT NOT NULL,
    fence            BIGINT NOT NULL,
    revision         BIGINT NOT NULL,
    needs_owner      INTEGER NOT NULL,
    finished_ms      BIGINT,
    keep_until_ms    BIGINT,
    approval_due_ms  BIGINT,
    execution_due_ms BIGINT,
    doc              BLOB NOT NULL
) WITHOUT ROWID;
-- What pages are filtered by is in the index, so that they skip rows without reading them.
CREATE INDEX tasks_of_caller ON tasks (caller, id DESC, server, state, keep_until_ms);
-- With finished_ms in it the index alone answers how many a caller has open; without it every row is looked up.
CREATE INDEX tasks_open ON tasks (caller, finished_ms) WHERE finished_ms IS NULL;
CREATE INDEX tasks_to_forget ON tasks (keep_until_ms) WHERE keep_until_ms IS NOT NULL;
CREATE INDEX tasks_approval_due ON tasks (approval_due_ms) WHERE approval_due_ms IS NOT NULL;
CREATE INDEX tasks_execution_due ON tasks (execution_due_ms) WHERE execution_due_ms IS NOT NULL;

-- The arguments never change, so they are not rewritten with every change of the task.
CREATE TABLE task_calls (
    task_id     TEXT PRIMARY KEY,
    arguments   BLOB NOT NULL,
    params_rest BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE task_outcomes (
    task_id TEXT PRIMARY KEY,
    body    BLOB,
    spill   TEXT
) WITHOUT ROWID;
CREATE INDEX task_outcomes_spilled ON task_outcomes (spill) WHERE spill IS NOT NULL;

CREATE TABLE attempts (
    task_id    TEXT NOT NULL,
    number     INTEGER NOT NULL,
    fence      BIGINT NOT NULL,
    byte_hash  TEXT NOT NULL,
    upstream   TEXT NOT NULL,
    sent_at_ms BIGINT NOT NULL,
    state      TEXT NOT NULL,
    PRIMARY KEY (task_id, number)
) WITHOUT ROWID;

CREATE TABLE questions (
    task_id    TEXT NOT NULL,
    key        TEXT NOT NULL,
    place      BIGINT NOT NULL,
    server     TEXT NOT NULL,
    method     TEXT NOT NULL,
    request    BLOB NOT NULL,
    asked_ms   BIGINT NOT NULL,
    expires_ms BIGINT,
    state      TEXT NOT NULL,
    answer     BLOB,
    PRIMARY KEY (task_id, key)
) WITHOUT ROWID;
CREATE INDEX questions_open ON questions (asked_ms) WHERE state = 'open';

CREATE TABLE idempotency_keys (
    principal  TEXT NOT NULL,
    key        TEXT NOT NULL,
    call       TEXT NOT NULL,
    task_id    TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    executed   TEXT,
    PRIMARY KEY (principal, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_of_task ON idempotency_keys (task_id);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_ms);

CREATE TABLE approvals (
    id         TEXT PRIMARY KEY,
    task_id    TEXT,
    caller     TEXT NOT NULL,
    server     TEXT NOT NULL,
    tool       TEXT NOT NULL,
    state      TEXT NOT NULL,
    asked_ms   BIGINT NOT NULL,
    due_ms     BIGINT,
    decided_ms BIGINT,
    wire_name  TEXT NOT NULL,
    arguments  BLOB NOT NULL,
    doc        BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX approvals_open ON approvals (asked_ms, id) WHERE state = 'open';
CREATE INDEX approvals_open_of_caller ON approvals (caller) WHERE state = 'open';
CREATE INDEX approvals_by_age ON approvals (asked_ms, id);
CREATE INDEX approvals_due ON approvals (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX approvals_given ON approvals (server, tool, decided_ms DESC) WHERE state IN ('approved', 'used');

CREATE TABLE grants (
    id       TEXT PRIMARY KEY,
    until_ms BIGINT NOT NULL,
    revoked  INTEGER NOT NULL,
    doc      BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE pins (
    server TEXT NOT NULL,
    tool   TEXT NOT NULL,
    doc    BLOB NOT NULL,
    by     TEXT NOT NULL,
    at_ms  BIGINT NOT NULL,
    PRIMARY KEY (server, tool)
) WITHOUT ROWID;

-- One row per caller has its last event number. A transaction that writes an event locks this row until it commits, so numbers
-- are in the order of the commits even with several writers.
CREATE TABLE event_streams (
    caller     TEXT PRIMARY KEY,
    last       BIGINT NOT NULL,
    delivered  BIGINT NOT NULL DEFAULT 0,
    touched_ms BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE events (
    caller TEXT NOT NULL,
    number BIGINT NOT NULL,
    id     TEXT NOT NULL,
    kind   TEXT NOT NULL,
    server TEXT NOT NULL,
    at_ms  BIGINT NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (caller, number)
) WITHOUT ROWID;
CREATE INDEX events_by_age ON events (at_ms);

CREATE TABLE audit (
    number  INTEGER PRIMARY KEY,
    hash    TEXT NOT NULL,
    content BLOB NOT NULL
);

CREATE TABLE keepsakes (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
