-- name: unfinished_of_principal
SELECT id FROM tasks
WHERE finished_ms IS NULL AND (caller = :principal OR principal = :principal)
UNION ALL
SELECT id FROM approvals
WHERE state = 'open' AND task_id IS NULL AND json_extract(CAST(doc AS TEXT), '$.binding.principal') = :principal
LIMIT 100;

-- name: tasks_of_principal
-- Includes tasks whose results have expired.
SELECT t.id, o.spill
FROM tasks t LEFT JOIN task_outcomes o ON o.task_id = t.id
WHERE t.id > :after AND (t.caller = :principal OR t.principal = :principal)
  AND (NOT :finished_only OR t.finished_ms IS NOT NULL)
ORDER BY t.id
LIMIT :limit;

-- name: erase_approvals
DELETE FROM approvals
WHERE state <> 'open' AND json_extract(CAST(doc AS TEXT), '$.binding.principal') = :principal
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = approvals.task_id)
RETURNING id;

-- name: erase_grants
DELETE FROM grants WHERE json_extract(CAST(doc AS TEXT), '$.principal') = :principal;

-- name: erase_events
DELETE FROM events WHERE caller = :principal OR (caller > :first AND caller < :beyond);

-- name: erase_recorded_calls
DELETE FROM recorded_calls
WHERE number > :after AND number <= :up_to AND json_extract(CAST(body AS TEXT), '$.principal') = :principal;

-- name: needs_key
-- Result files are not read: while there are any, they may need the key.
SELECT EXISTS (SELECT 1 FROM task_calls WHERE substr(arguments, 1, :length) = :prefix)
    OR EXISTS (SELECT 1 FROM task_outcomes WHERE spill IS NOT NULL OR substr(body, 1, :length) = :prefix)
    OR EXISTS (SELECT 1 FROM questions WHERE substr(request, 1, :length) = :prefix OR substr(answer, 1, :length) = :prefix)
    OR EXISTS (SELECT 1 FROM approvals WHERE substr(arguments, 1, :length) = :prefix)
    OR EXISTS (SELECT 1 FROM events WHERE substr(data, 1, :length) = :prefix)
    OR EXISTS (SELECT 1 FROM scripts WHERE substr(doc, 1, :length) = :prefix)
    OR EXISTS (SELECT 1 FROM tasks WHERE instr(doc, :within) > 0)
    OR EXISTS (SELECT 1 FROM recorded_calls WHERE instr(body, :within) > 0);
