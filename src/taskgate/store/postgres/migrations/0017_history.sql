-- One row for each call that has ended; see `core.history.row`. The number begins with the time of the end, so a day is a range of numbers
-- and a partition. Gateways make the partitions (`store.postgres.history_days`); rows of other days are in the last one.
CREATE TABLE history (
    number      bigint PRIMARY KEY,
    kind        text NOT NULL,
    outcome     text NOT NULL,
    task_id     text,
    caller      text NOT NULL,
    tenant      text NOT NULL,
    scope       text NOT NULL,
    server      text NOT NULL,
    tool        text NOT NULL,
    client      text NOT NULL,
    error_type  text NOT NULL,
    rule        text NOT NULL,
    approved_by text NOT NULL,
    doc         bytea NOT NULL
) PARTITION BY RANGE (number);
CREATE TABLE history_other_days PARTITION OF history DEFAULT;
CREATE INDEX history_of_task ON history (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX history_of_caller ON history (caller, number DESC);
CREATE INDEX history_of_tenant ON history (tenant, number DESC) WHERE tenant <> '';
CREATE INDEX history_of_scope ON history (scope, number DESC);
CREATE INDEX history_of_server ON history (server, number DESC);
CREATE INDEX history_of_tool ON history (tool, number DESC);
CREATE INDEX history_of_client ON history (client, number DESC);
CREATE INDEX history_of_error_type ON history (error_type, number DESC) WHERE error_type <> '';
CREATE INDEX history_of_outcome ON history (outcome, number DESC);
CREATE INDEX history_approved ON history (approved_by) WHERE approved_by <> '';
-- Nothing that may be encrypted at rest is in it. The parser keeps paths and addresses whole, so what separates words is replaced.
-- Every search reads the list of entries that are not merged into the index yet, in kilobytes for each day: it is kept short.
CREATE INDEX history_words ON history USING gin (to_tsvector('simple', translate(
    tool || ' ' || server || ' ' || caller || ' ' || scope || ' ' || client || ' ' || error_type || ' ' || rule, '!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~', repeat(' ', 32)))) WITH (gin_pending_list_limit = 128);

-- Redacted arguments and results, where `history.content` keeps them.
CREATE TABLE history_content (
    task_id text PRIMARY KEY,
    at_ms   bigint NOT NULL,
    body    bytea NOT NULL
);
CREATE INDEX history_content_by_age ON history_content (at_ms);

-- How many calls ended how, by period; see `core.history.counts`.
CREATE TABLE history_counts (
    period    text NOT NULL,
    dimension text NOT NULL,
    name      text COLLATE "C" NOT NULL,
    start_ms  bigint NOT NULL,
    tenant    text NOT NULL,
    outcome   text NOT NULL,
    step      integer NOT NULL,
    calls     bigint NOT NULL,
    PRIMARY KEY (period, dimension, name, start_ms, tenant, outcome, step)
);
CREATE INDEX history_counts_by_time ON history_counts (period, dimension, start_ms);

-- Tasks that ended before there was history, as far as they are still there. The order of the array is that of `store.operations.history`.
INSERT INTO history
SELECT (finished_ms << 20) | (row_number() OVER (ORDER BY id) & 1048575), 'task',
    CASE WHEN (d #>> '{outcome,is_error}') = 'true' AND (d #>> '{outcome,kind}') = 'result' THEN 'tool_error'
         WHEN state = 'completed' THEN 'ok' ELSE state END,
    id, principal,
    CASE WHEN position('/' IN principal) > 1 AND position(':' IN split_part(principal, '/', 1)) = 0 THEN split_part(principal, '/', 1) ELSE '' END,
    scope, server, coalesce(d ->> 'tool', wire_name), '', '', '', '',
    convert_to(json_build_array(
        d ->> 'generation', '', coalesce((d ->> 'created_ms')::bigint, 0),
        coalesce((d #>> '{last_attempt,sent_at_ms}')::bigint, 0), finished_ms, '',
        coalesce(d ->> 'executed', 'maybe'), coalesce((d #>> '{last_attempt,number}')::bigint, 0), coalesce(d ->> 'approval_id', '')
    )::text, 'UTF8')
FROM (SELECT *, convert_from(doc, 'UTF8')::json AS d FROM tasks WHERE finished_ms IS NOT NULL) AS ended;
