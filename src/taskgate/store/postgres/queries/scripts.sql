-- name: deliver_script_calls
UPDATE script_calls SET delivered_step = :step
WHERE script_id = :script_id AND number = ANY(ARRAY(SELECT json_array_elements_text(:numbers::json)::bigint));

-- name: calls_of_script
SELECT c.number, c.line, c.delivered_step, t.doc, t.owner, t.fence
FROM (
    SELECT number, line, delivered_step, task_id FROM script_calls
    WHERE script_id = :script_id AND number > :number ORDER BY number LIMIT :limit
) AS c
CROSS JOIN LATERAL (SELECT doc, owner, fence FROM tasks WHERE id = c.task_id LIMIT 1) AS t
ORDER BY c.number;
