-- name: history_matching
-- The word index finds the rows; the columns make sure, because a name may begin with the words of another one.
SELECT h.number, h.kind, h.outcome, h.task_id, h.caller, h.scope, h.server, h.tool, h.client, h.error_type, h.rule, h.approved_by, h.doc
FROM history_words w CROSS JOIN history h ON h.number = w.rowid
WHERE history_words MATCH :match AND w.rowid >= :first AND w.rowid < :before
  AND (:tenant IS NULL OR h.tenant = :tenant)
  AND (:caller IS NULL OR h.caller = :caller)
  AND (:scope IS NULL OR h.scope = :scope)
  AND (:server IS NULL OR h.server = :server)
  AND (:tool IS NULL OR h.tool = :tool)
  AND (:client IS NULL OR h.client = :client)
  AND (:error_type IS NULL OR h.error_type = :error_type)
  AND (:kind IS NULL OR h.kind = :kind)
  AND (:outcomes IS NULL OR instr(:outcomes, ',' || h.outcome || ',') > 0)
ORDER BY w.rowid DESC LIMIT :limit;

-- name: forget_history_of
DELETE FROM history WHERE number IN (SELECT number FROM history WHERE caller = :caller ORDER BY number LIMIT :limit)
RETURNING task_id;

-- name: add_history_counts
INSERT INTO history_counts (period, dimension, name, start_ms, tenant, outcome, step, calls)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'), json_extract(value, '$[7]')
FROM json_each(:rows) WHERE true
ON CONFLICT (period, dimension, name, start_ms, tenant, outcome, step) DO UPDATE SET calls = history_counts.calls + excluded.calls;

-- name: drop_sums
DELETE FROM call_sums WHERE number IN (SELECT value FROM json_each(:numbers));

-- name: erase_approver
UPDATE history SET approved_by = trim(replace(', ' || approved_by || ', ', ', ' || :caller || ', ', ', (erased), '), ', ')
WHERE approved_by <> '' AND instr(', ' || approved_by || ', ', ', ' || :caller || ', ') > 0;

-- name: history_needs_key
SELECT EXISTS (SELECT 1 FROM history_content WHERE substr(body, 1, :length) = :prefix);

-- name: forget_old_history
DELETE FROM history WHERE number IN (SELECT number FROM history WHERE number < :before ORDER BY number LIMIT :limit)
RETURNING task_id;

-- name: forget_old_history_content
DELETE FROM history_content
WHERE task_id IN (SELECT task_id FROM history_content WHERE at_ms < :before_ms ORDER BY at_ms LIMIT :limit);

-- name: forget_history_counts
DELETE FROM history_counts WHERE (period, dimension, name, start_ms, tenant, outcome, step) IN (
    SELECT period, dimension, name, start_ms, tenant, outcome, step FROM history_counts
    WHERE period = :period AND dimension = :dimension AND start_ms < :before_ms LIMIT :limit
);
