-- name: insert_approval
INSERT INTO approvals (id, task_id, caller, server, tool, state, asked_ms, due_ms, decided_ms, wire_name, arguments, doc)
VALUES (:id, :task_id, :caller, :server, :tool, :state, :asked_ms, :due_ms, :decided_ms, :wire_name, :arguments, :doc);

-- name: held_requests
SELECT doc, caller, wire_name, arguments, task_id FROM approvals
WHERE state = 'open' AND task_id IS NULL AND json_extract(CAST(doc AS TEXT), '$.binding.principal') = :principal AND server = :server AND tool = :tool
UNION ALL
SELECT doc, caller, wire_name, arguments, task_id FROM approvals
WHERE state IN ('approved', 'used') AND state = 'approved' AND task_id IS NULL AND json_extract(CAST(doc AS TEXT), '$.binding.principal') = :principal AND server = :server AND tool = :tool
LIMIT :limit;
