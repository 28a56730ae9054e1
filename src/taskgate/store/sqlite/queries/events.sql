-- name: last_audit
SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1;

-- name: insert_audit
INSERT INTO audit (number, hash, content) VALUES (:number, :hash, :content);

-- name: forget_audit
-- The last row is never deleted: the chain continues from it.
DELETE FROM audit WHERE number <= :number AND number < (SELECT max(number) FROM audit);

-- name: audit_after
SELECT number, hash, content FROM audit WHERE number > :number ORDER BY number LIMIT :limit;
