-- name: forget_ended_identity_records
DELETE FROM identity_records
WHERE (kind, name) IN (SELECT kind, name FROM identity_records WHERE expires_ms <= :now_ms ORDER BY expires_ms LIMIT :limit);
