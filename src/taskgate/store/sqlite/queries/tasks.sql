-- name: find_task
SELECT t.doc, t.owner, t.fence, c.arguments, c.params_rest
FROM tasks t JOIN task_calls c ON c.task_id = t.id
WHERE t.id = :id;

-- name: page_of_tasks
SELECT t.doc, t.owner, t.fence, iif(length(c.arguments) <= :arguments_up_to, c.arguments, x'')
FROM (
    SELECT id
    FROM tasks
    WHERE caller = :caller
      AND id < coalesce(:after, '~')
      AND (:server IS NULL OR server = :server)
      AND (:states IS NULL OR instr(:states, ',' || state || ',') > 0)
      AND (:include_expired OR keep_until_ms IS NULL OR keep_until_ms > :now_ms)
    ORDER BY id DESC
    LIMIT :limit
) AS wanted
JOIN tasks t ON t.id = wanted.id
JOIN task_calls c ON c.task_id = wanted.id
ORDER BY t.id DESC;

-- name: page_of_all_tasks
SELECT t.doc, t.owner, t.fence, iif(length(c.arguments) <= :arguments_up_to, c.arguments, x'')
FROM tasks t JOIN task_calls c ON c.task_id = t.id
WHERE t.id < coalesce(:after, '~')
  AND (:server IS NULL OR t.server = :server)
  AND (:states IS NULL OR instr(:states, ',' || t.state || ',') > 0)
  AND (:include_expired OR t.keep_until_ms IS NULL OR t.keep_until_ms > :now_ms)
ORDER BY t.id DESC
LIMIT :limit;

-- name: find_tasks
-- A text is compared with each name: joining the names first would take twice as long.
SELECT doc, owner, fence
FROM tasks
WHERE id >= :first AND id < :before
  AND (:server IS NULL OR server = :server)
  AND (:states IS NULL OR instr(:states, ',' || state || ',') > 0)
  AND (keep_until_ms IS NULL OR keep_until_ms > :now_ms)
  AND (:principal IS NULL OR principal = :principal)
  AND (:tenant IS NULL OR instr(principal, :tenant || '/') = 1)
  AND (:scope IS NULL OR scope = :scope)
  AND (:tool IS NULL OR instr(wire_name, :tool) > 0)
  AND (:part_1 IS NULL OR wire_name LIKE :part_1 ESCAPE '\' OR principal LIKE :part_1 ESCAPE '\' OR server LIKE :part_1 ESCAPE '\' OR scope LIKE :part_1 ESCAPE '\' OR id LIKE :part_1 ESCAPE '\')
  AND (:part_2 IS NULL OR wire_name LIKE :part_2 ESCAPE '\' OR principal LIKE :part_2 ESCAPE '\' OR server LIKE :part_2 ESCAPE '\' OR scope LIKE :part_2 ESCAPE '\' OR id LIKE :part_2 ESCAPE '\')
  AND (:part_3 IS NULL OR wire_name LIKE :part_3 ESCAPE '\' OR principal LIKE :part_3 ESCAPE '\' OR server LIKE :part_3 ESCAPE '\' OR scope LIKE :part_3 ESCAPE '\' OR id LIKE :part_3 ESCAPE '\')
  AND (:part_4 IS NULL OR wire_name LIKE :part_4 ESCAPE '\' OR principal LIKE :part_4 ESCAPE '\' OR server LIKE :part_4 ESCAPE '\' OR scope LIKE :part_4 ESCAPE '\' OR id LIKE :part_4 ESCAPE '\')
ORDER BY id DESC
LIMIT :limit;

-- name: find_open_tasks
SELECT doc, owner, fence
FROM tasks INDEXED BY tasks_open
WHERE finished_ms IS NULL AND id >= :first AND id < :before
  AND (:server IS NULL OR server = :server)
  AND (:states IS NULL OR instr(:states, ',' || state || ',') > 0)
  AND (keep_until_ms IS NULL OR keep_until_ms > :now_ms)
  AND (:principal IS NULL OR principal = :principal)
  AND (:tenant IS NULL OR instr(principal, :tenant || '/') = 1)
  AND (:scope IS NULL OR scope = :scope)
  AND (:tool IS NULL OR instr(wire_name, :tool) > 0)
  AND (:part_1 IS NULL OR wire_name LIKE :part_1 ESCAPE '\' OR principal LIKE :part_1 ESCAPE '\' OR server LIKE :part_1 ESCAPE '\' OR scope LIKE :part_1 ESCAPE '\' OR id LIKE :part_1 ESCAPE '\')
  AND (:part_2 IS NULL OR wire_name LIKE :part_2 ESCAPE '\' OR principal LIKE :part_2 ESCAPE '\' OR server LIKE :part_2 ESCAPE '\' OR scope LIKE :part_2 ESCAPE '\' OR id LIKE :part_2 ESCAPE '\')
  AND (:part_3 IS NULL OR wire_name LIKE :part_3 ESCAPE '\' OR principal LIKE :part_3 ESCAPE '\' OR server LIKE :part_3 ESCAPE '\' OR scope LIKE :part_3 ESCAPE '\' OR id LIKE :part_3 ESCAPE '\')
  AND (:part_4 IS NULL OR wire_name LIKE :part_4 ESCAPE '\' OR principal LIKE :part_4 ESCAPE '\' OR server LIKE :part_4 ESCAPE '\' OR scope LIKE :part_4 ESCAPE '\' OR id LIKE :part_4 ESCAPE '\')
ORDER BY id DESC
LIMIT :limit;

-- name: tasks_ended_badly
SELECT doc, owner, fence
FROM tasks INDEXED BY tasks_ended_badly
WHERE state IN ('failed', 'cancelled', 'rejected', 'expired', 'outcome_unknown')
  AND finished_ms >= :since_ms
  AND (keep_until_ms IS NULL OR keep_until_ms > :now_ms)
  AND (:principal IS NULL OR principal = :principal)
  AND (:tenant IS NULL OR instr(principal, :tenant || '/') = 1)
ORDER BY finished_ms DESC, id DESC
LIMIT :limit;
