-- Times are milliseconds since 1970 by the database's clock. `doc` holds the whole value as JSON bytes; the columns beside it are
-- what the store searches or guards by, and `owner` and `fence` live in columns only. Migrations only add: a gateway of the
-- version before must be able to work beside one that has migrated.

CREATE TABLE owners (
    owner      text PRIMARY KEY,
    fence      bigint NOT NULL,
    started_ms bigint NOT NULL,
    retired    boolean NOT NULL DEFAULT false
);
CREATE SEQUENCE fences;

-- The lease of each gateway. Apart from `owners`, so that renewing it never waits for a transaction that guards by its owner.
CREATE TABLE replicas (
    owner         text PRIMARY KEY,
    address       text NOT NULL,
    version       text NOT NULL,
    configuration text NOT NULL,
    started_ms    bigint NOT NULL,
    seen_ms       bigint NOT NULL
);

CREATE TABLE tasks (
    id               text COLLATE "C" PRIMARY KEY,
    tenant           text NOT NULL DEFAULT '',
    principal        text NOT NULL DEFAULT '',
    caller           text NOT NULL,
    limited_as       text NOT NULL,
    server           text NOT NULL,
    state            text NOT NULL,
    owner            text NOT NULL,
    fence            bigint NOT NULL,
    revision         bigint NOT NULL,
    needs_owner      smallint NOT NULL,
    finished_ms      bigint,
    keep_until_ms    bigint,
    approval_due_ms  bigint,
    execution_due_ms bigint,
    forget_at_ms     bigint,
    doc              bytea NOT NULL
);
CREATE INDEX tasks_of_caller ON tasks (caller, id DESC);
CREATE INDEX tasks_open ON tasks (limited_as) WHERE finished_ms IS NULL;
CREATE INDEX tasks_to_own ON tasks (owner, id) WHERE needs_owner = 1;
CREATE INDEX tasks_to_expire ON tasks (keep_until_ms) WHERE keep_until_ms IS NOT NULL AND forget_at_ms IS NULL;
CREATE INDEX tasks_to_forget ON tasks (forget_at_ms) WHERE forget_at_ms IS NOT NULL;
CREATE INDEX tasks_approval_due ON tasks (approval_due_ms) WHERE approval_due_ms IS NOT NULL;
CREATE INDEX tasks_execution_due ON tasks (execution_due_ms) WHERE execution_due_ms IS NOT NULL;

CREATE TABLE task_calls (
    task_id     text PRIMARY KEY,
    arguments   bytea NOT NULL,
    params_rest bytea NOT NULL
);

CREATE TABLE task_outcomes (
    task_id text PRIMARY KEY,
    body    bytea,
    spill   text
);
CREATE INDEX task_outcomes_spilled ON task_outcomes (spill) WHERE spill IS NOT NULL;

-- Results that are too long for one row, in pieces. Written and committed before the commit that names them.
CREATE TABLE result_chunks (
    name       text NOT NULL,
    number     integer NOT NULL,
    created_ms bigint NOT NULL,
    bytes      bytea NOT NULL,
    PRIMARY KEY (name, number)
);
ALTER TABLE result_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE attempts (
    task_id    text NOT NULL,
    number     integer NOT NULL,
    fence      bigint NOT NULL,
    byte_hash  text NOT NULL,
    upstream   text NOT NULL,
    sent_at_ms bigint NOT NULL,
    state      text NOT NULL,
    PRIMARY KEY (task_id, number)
);

CREATE TABLE questions (
    task_id    text NOT NULL,
    key        text NOT NULL,
    place      bigint NOT NULL,
    server     text NOT NULL,
    method     text NOT NULL,
    request    bytea NOT NULL,
    asked_ms   bigint NOT NULL,
    expires_ms bigint,
    state      text NOT NULL,
    answer     bytea,
    shown_as   text,
    PRIMARY KEY (task_id, key)
);
CREATE INDEX questions_open ON questions (asked_ms) WHERE state = 'open';

CREATE TABLE idempotency_keys (
    principal  text NOT NULL,
    key        text NOT NULL,
    call       text NOT NULL,
    task_id    text NOT NULL,
    created_ms bigint NOT NULL,
    executed   text,
    PRIMARY KEY (principal, key)
);
CREATE INDEX idempotency_keys_of_task ON idempotency_keys (task_id);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_ms);

CREATE TABLE approvals (
    id         text COLLATE "C" PRIMARY KEY,
    tenant     text NOT NULL DEFAULT '',
    principal  text NOT NULL DEFAULT '',
    task_id    text,
    caller     text NOT NULL,
    server     text NOT NULL,
    tool       text NOT NULL,
    state      text NOT NULL,
    asked_ms   bigint NOT NULL,
    due_ms     bigint,
    decided_ms bigint,
    wire_name  text NOT NULL,
    arguments  bytea NOT NULL,
    doc        bytea NOT NULL
);
CREATE INDEX approvals_open ON approvals (asked_ms, id) WHERE state = 'open';
CREATE INDEX approvals_open_of_caller ON approvals (caller text_pattern_ops) WHERE state = 'open';
CREATE INDEX approvals_by_age ON approvals (asked_ms, id);
CREATE INDEX approvals_due ON approvals (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX approvals_given ON approvals (server, tool, decided_ms DESC) WHERE state IN ('approved', 'used');

CREATE TABLE grants (
    id       text COLLATE "C" PRIMARY KEY,
    tenant   text NOT NULL DEFAULT '',
    until_ms bigint NOT NULL,
    revoked  smallint NOT NULL,
    doc      bytea NOT NULL
);

CREATE TABLE pins (
    server text NOT NULL,
    tool   text NOT NULL,
    doc    bytea NOT NULL,
    by     text NOT NULL,
    at_ms  bigint NOT NULL,
    PRIMARY KEY (server, tool)
);

CREATE TABLE channel_receipts (
    approval_id text NOT NULL,
    place       text NOT NULL,
    workflow    text NOT NULL,
    receipt     text NOT NULL,
    PRIMARY KEY (approval_id, place)
);

-- One row per caller has its last event number. A transaction that writes an event locks this row until it commits, so numbers
-- are in the order of the commits even if several gateways write at once.
CREATE TABLE event_streams (
    caller     text COLLATE "C" PRIMARY KEY,
    last       bigint NOT NULL,
    delivered  bigint NOT NULL DEFAULT 0,
    touched_ms bigint NOT NULL
);

CREATE TABLE events (
    caller text NOT NULL,
    number bigint NOT NULL,
    id     text NOT NULL,
    kind   text NOT NULL,
    server text NOT NULL,
    at_ms  bigint NOT NULL,
    data   bytea NOT NULL,
    PRIMARY KEY (caller, number)
);
CREATE INDEX events_by_age ON events (at_ms);

-- One chain for each start of a gateway, so that no gateway waits for the end of another one's chain.
CREATE TABLE audit (
    chain   text NOT NULL,
    number  bigint NOT NULL,
    hash    text NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (chain, number)
);

CREATE TABLE keepsakes (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

CREATE TABLE catalogs (
    server      text PRIMARY KEY,
    fingerprint text NOT NULL,
    listed_ms   bigint NOT NULL,
    body        bytea NOT NULL
);

-- Temporary scopes, which are created at run time and expire.
CREATE TABLE temporary_scopes (
    name       text PRIMARY KEY,
    expires_ms bigint NOT NULL,
    body       bytea NOT NULL
);
