-- name: deliver_script_calls
UPDATE script_calls SET delivered_step = :step
WHERE script_id = :script_id AND number IN (SELECT CAST(value AS INTEGER) FROM json_each(:numbers));

-- name: calls_of_script
SELECT c.number, c.line, c.delivered_step, t.doc, t.owner, t.fence
FROM script_calls c JOIN tasks t ON t.id = c.task_id
WHERE c.script_id = :script_id AND c.number > :number
ORDER BY c.number
LIMIT :limit;
