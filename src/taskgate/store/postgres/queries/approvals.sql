-- name: insert_approval
INSERT INTO approvals (id, principal, task_id, caller, server, tool, state, asked_ms, due_ms, decided_ms, wire_name, arguments, doc)
VALUES (:id, :principal, :task_id, :caller, :server, :tool, :state, :asked_ms, :due_ms, :decided_ms, :wire_name, :arguments, :doc);

-- name: held_requests
SELECT doc, caller, wire_name, arguments, task_id FROM approvals
WHERE state = 'open' AND task_id IS NULL AND principal = :principal AND server = :server AND tool = :tool
UNION ALL
SELECT doc, caller, wire_name, arguments, task_id FROM approvals
WHERE state = 'approved' AND task_id IS NULL AND principal = :principal AND server = :server AND tool = :tool
LIMIT :limit;
