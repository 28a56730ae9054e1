-- name: forget_ended_identity_records
DELETE FROM identity_records WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM identity_records WHERE expires_ms <= :now_ms ORDER BY expires_ms LIMIT :limit FOR UPDATE SKIP LOCKED
));
