-- name: history_row_of_task
SELECT number, kind, outcome, task_id, caller, scope, server, tool, client, error_type, rule, approved_by, doc
FROM history WHERE task_id = :task_id::text;

-- name: history_row_numbered
SELECT number, kind, outcome, task_id, caller, scope, server, tool, client, error_type, rule, approved_by, doc
FROM history WHERE number = :number;

-- name: history_latest
SELECT number, kind, outcome, task_id, caller, scope, server, tool, client, error_type, rule, approved_by, doc
FROM history WHERE number >= :first AND number < :before
ORDER BY number DESC LIMIT :limit;

-- name: history_of_caller
SELECT number, kind, outcome, task_id, caller, scope, server, tool, client, error_type, rule, approved_by, doc
FROM history WHERE caller = :caller AND number >= :first AND number < :before
ORDER BY number DESC LIMIT :limit;

-- name: history_size
SELECT caller, count(*) FROM history GROUP BY caller;

-- name: forget_history_content
DELETE FROM history_content WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: find_history_content
SELECT body FROM history_content WHERE task_id = :task_id;

-- name: put_history_content
INSERT INTO history_content (task_id, at_ms, body) VALUES (:task_id, :at_ms, :body)
ON CONFLICT (task_id) DO UPDATE SET body = excluded.body;

-- name: history_counts_of
SELECT start_ms / :bucket_ms::bigint * :bucket_ms AS bucket, name, outcome, step, sum(calls)::bigint FROM history_counts
WHERE period = :period AND dimension = :dimension AND name = :name AND start_ms >= :since_ms AND start_ms < :until_ms
  AND (:tenant::text IS NULL OR tenant = :tenant)
GROUP BY bucket, name, outcome, step;

-- name: history_totals
SELECT 0, name, outcome, step, sum(calls)::bigint FROM history_counts
WHERE period = :period AND dimension = :dimension AND start_ms >= :since_ms AND start_ms < :until_ms
  AND (:tenant::text IS NULL OR tenant = :tenant)
GROUP BY name, outcome, step;

-- name: history_courses
SELECT start_ms / :bucket_ms::bigint * :bucket_ms AS bucket, name, '', -1, sum(calls)::bigint FROM history_counts
WHERE period = :period AND dimension = :dimension AND name IN (SELECT value FROM json_each(:names))
  AND start_ms >= :since_ms AND start_ms < :until_ms AND outcome <> '' AND (:tenant::text IS NULL OR tenant = :tenant)
GROUP BY name, bucket;

-- name: history_latencies
SELECT 0, name, '', step, sum(calls)::bigint FROM history_counts
WHERE period = :period AND dimension = :dimension AND name IN (SELECT value FROM json_each(:names))
  AND start_ms >= :since_ms AND start_ms < :until_ms AND step >= 0 AND (:tenant::text IS NULL OR tenant = :tenant)
GROUP BY name, step;

-- name: history_names
SELECT DISTINCT name FROM history_counts
WHERE period = 'day_sum' AND dimension = :dimension AND name >= :begins AND name < :beyond
  AND (:tenant::text IS NULL OR tenant = :tenant)
ORDER BY name LIMIT :limit;

-- name: erase_history_counts
DELETE FROM history_counts WHERE dimension = 'caller' AND name = :caller AND period IN ('minute', 'quarter', 'two_hours', 'day', 'hour_sum', 'day_sum');

-- name: grow_history_row
UPDATE history SET doc = :doc WHERE number = :number;

-- name: insert_history
INSERT INTO history (number, kind, outcome, task_id, caller, tenant, scope, server, tool, client, error_type, rule, approved_by, doc)
VALUES (:number, :kind, :outcome, :task_id, :caller, :tenant, :scope, :server, :tool, :client, :error_type, :rule, :approved_by, :doc)
ON CONFLICT DO NOTHING;
