-- name: unfinished_of_principal
SELECT id FROM tasks
WHERE finished_ms IS NULL AND (caller = :principal OR principal = :principal)
UNION ALL
SELECT id FROM approvals
WHERE state = 'open' AND task_id IS NULL AND principal = :principal
LIMIT 100;

-- name: tasks_of_principal
-- Includes tasks whose results have expired.
SELECT t.id, (SELECT spill FROM task_outcomes WHERE task_id = t.id COLLATE "default")
FROM tasks t
WHERE t.id > :after AND (t.caller = :principal OR t.principal = :principal)
  AND (NOT :finished_only::boolean OR t.finished_ms IS NOT NULL)
ORDER BY t.id
LIMIT :limit;

-- name: erase_approvals
DELETE FROM approvals
WHERE state <> 'open' AND principal = :principal
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = approvals.task_id)
RETURNING id;

-- name: erase_grants
DELETE FROM grants WHERE convert_from(doc, 'UTF8')::json ->> 'principal' = :principal;

-- name: erase_events
-- Events are deleted before their stream.
DELETE FROM events WHERE caller = ANY(ARRAY(
    SELECT caller COLLATE "default" FROM event_streams WHERE caller = :principal OR (caller > :first AND caller < :beyond)
));

-- name: erase_recorded_calls
DELETE FROM recorded_calls
WHERE number > :after AND number <= :up_to AND convert_from(body, 'UTF8')::json ->> 'principal' = :principal;

-- name: needs_key
-- Long results are not read: while there are any, they may need the key.
SELECT EXISTS (SELECT 1 FROM task_calls WHERE substring(arguments FROM 1 FOR :length) = :prefix)
    OR EXISTS (SELECT 1 FROM task_outcomes WHERE spill IS NOT NULL OR substring(body FROM 1 FOR :length) = :prefix)
    OR EXISTS (SELECT 1 FROM questions WHERE substring(request FROM 1 FOR :length) = :prefix OR substring(answer FROM 1 FOR :length) = :prefix)
    OR EXISTS (SELECT 1 FROM approvals WHERE substring(arguments FROM 1 FOR :length) = :prefix)
    OR EXISTS (SELECT 1 FROM events WHERE substring(data FROM 1 FOR :length) = :prefix)
    OR EXISTS (SELECT 1 FROM scripts WHERE substring(doc FROM 1 FOR :length) = :prefix)
    OR EXISTS (SELECT 1 FROM tasks WHERE position(:within::bytea IN doc) > 0)
    OR EXISTS (SELECT 1 FROM recorded_calls WHERE position(:within::bytea IN body) > 0)
    OR EXISTS (SELECT 1 FROM keepsakes WHERE substring(value FROM 1 FOR :length) = :prefix);
