-- One row for each call that has ended; see `core.history.row`. The number begins with the time of the end. `doc` holds what is not searched.
-- Filters use the word index, which finds combinations of them too; rows of a caller and of a task have an index of their own.
CREATE TABLE history (
    number      INTEGER PRIMARY KEY,
    kind        TEXT NOT NULL,
    outcome     TEXT NOT NULL,
    task_id     TEXT,
    caller      TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    scope       TEXT NOT NULL,
    server      TEXT NOT NULL,
    tool        TEXT NOT NULL,
    client      TEXT NOT NULL,
    error_type  TEXT NOT NULL,
    rule        TEXT NOT NULL,
    approved_by TEXT NOT NULL,
    doc         BLOB NOT NULL
);
CREATE INDEX history_of_caller ON history (caller);
CREATE UNIQUE INDEX history_of_task ON history (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX history_approved ON history (approved_by) WHERE approved_by <> '';

-- Without content: the rows themselves have it. Nothing that may be encrypted at rest is in it.
CREATE VIRTUAL TABLE history_words USING fts5 (
    kind, outcome, caller, tenant, scope, server, tool, client, error_type, rule,
    content = '', tokenize = 'unicode61 remove_diacritics 0'
);
CREATE TRIGGER history_added AFTER INSERT ON history BEGIN
    INSERT INTO history_words (rowid, kind, outcome, caller, tenant, scope, server, tool, client, error_type, rule)
    VALUES (NEW.number, NEW.kind, NEW.outcome, NEW.caller, NEW.tenant, NEW.scope, NEW.server, NEW.tool, NEW.client, NEW.error_type, NEW.rule);
END;
CREATE TRIGGER history_removed AFTER DELETE ON history BEGIN
    INSERT INTO history_words (history_words, rowid, kind, outcome, caller, tenant, scope, server, tool, client, error_type, rule)
    VALUES ('delete', OLD.number, OLD.kind, OLD.outcome, OLD.caller, OLD.tenant, OLD.scope, OLD.server, OLD.tool, OLD.client, OLD.error_type, OLD.rule);
END;

-- Redacted arguments and results, where `history.content` keeps them.
CREATE TABLE history_content (
    task_id TEXT PRIMARY KEY,
    at_ms   INTEGER NOT NULL,
    body    BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX history_content_by_age ON history_content (at_ms);

-- How many calls ended how, by period; see `core.history.counts`.
CREATE TABLE history_counts (
    period    TEXT NOT NULL,
    dimension TEXT NOT NULL,
    name      TEXT NOT NULL,
    start_ms  INTEGER NOT NULL,
    tenant    TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    step      INTEGER NOT NULL,
    calls     INTEGER NOT NULL,
    PRIMARY KEY (period, dimension, name, start_ms, tenant, outcome, step)
) WITHOUT ROWID;
-- With all columns: totals over all names are read from it alone.
CREATE INDEX history_counts_by_time ON history_counts (period, dimension, start_ms, name, outcome, step, tenant, calls);

-- Tasks that ended before there was history, as far as they are still there. The order of the array is that of `store.operations.history`.
INSERT INTO history
SELECT (finished_ms << 20) | (row_number() OVER (ORDER BY id) & 1048575), 'task',
    CASE WHEN json_extract(CAST(doc AS TEXT), '$.outcome.is_error') AND json_extract(CAST(doc AS TEXT), '$.outcome.kind') = 'result' THEN 'tool_error'
         WHEN state = 'completed' THEN 'ok' ELSE state END,
    id, principal,
    CASE WHEN instr(principal, '/') > 1 AND instr(substr(principal, 1, instr(principal, '/') - 1), ':') = 0
         THEN substr(principal, 1, instr(principal, '/') - 1) ELSE '' END,
    scope, server, coalesce(json_extract(CAST(doc AS TEXT), '$.tool'), wire_name), '', '', '', '',
    CAST(json_array(
        json_extract(CAST(doc AS TEXT), '$.generation'), '', coalesce(json_extract(CAST(doc AS TEXT), '$.created_ms'), 0),
        coalesce(json_extract(CAST(doc AS TEXT), '$.last_attempt.sent_at_ms'), 0), finished_ms, '',
        coalesce(json_extract(CAST(doc AS TEXT), '$.executed'), 'maybe'), coalesce(json_extract(CAST(doc AS TEXT), '$.last_attempt.number'), 0),
        coalesce(json_extract(CAST(doc AS TEXT), '$.approval_id'), '')
    ) AS BLOB)
FROM tasks WHERE finished_ms IS NOT NULL;
