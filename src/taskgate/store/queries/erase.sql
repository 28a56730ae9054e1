-- name: erase_keys
DELETE FROM idempotency_keys
WHERE principal = :principal AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = idempotency_keys.task_id);

-- name: erase_usage
DELETE FROM usage WHERE principal = :principal;

-- name: erase_identity_records
DELETE FROM identity_records WHERE principal = :principal AND kind <> :kept;

-- name: identity_records_of
SELECT kind, name, principal, expires_ms, body FROM identity_records WHERE principal = :principal ORDER BY kind, name;
