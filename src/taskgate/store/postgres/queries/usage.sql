-- name: forget_old_calls
DELETE FROM recorded_calls WHERE number = ANY(ARRAY(
    SELECT number FROM recorded_calls WHERE at_ms < :before_ms ORDER BY at_ms LIMIT :limit
));

-- name: forget_first_calls
DELETE FROM recorded_calls WHERE number = ANY(ARRAY(
    SELECT number FROM recorded_calls WHERE number <= :number ORDER BY number LIMIT :limit
));

-- name: forget_usage
DELETE FROM usage WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM usage WHERE day < :before ORDER BY day LIMIT :limit FOR UPDATE SKIP LOCKED
));
