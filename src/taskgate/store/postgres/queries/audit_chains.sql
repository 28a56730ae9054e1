-- name: put_chain
INSERT INTO audit_chains (chain, began_ms) VALUES (:chain, :now_ms) ON CONFLICT (chain) DO NOTHING;

-- name: unnamed_heads
-- The ends of other chains that no first row names yet.
SELECT c.chain, h.number, h.hash FROM audit_chains c
CROSS JOIN LATERAL (SELECT number, hash FROM audit a WHERE a.chain = c.chain COLLATE "default" ORDER BY number DESC LIMIT 1) AS h
WHERE c.chain <> :chain AND h.number > c.named
ORDER BY c.chain LIMIT 1000;

-- name: head_named
UPDATE audit_chains SET named = greatest(named, :number) WHERE chain = :other;

-- name: audit_chains
SELECT chain, cut FROM audit_chains ORDER BY began_ms, chain;

-- name: chain_ends
SELECT c.chain, c.began_ms, h.number, h.hash, h.content FROM audit_chains c
CROSS JOIN LATERAL (SELECT number, hash, content FROM audit a WHERE a.chain = c.chain COLLATE "default" ORDER BY number DESC LIMIT 1) AS h
ORDER BY c.began_ms DESC, c.chain LIMIT 1000;

-- name: ended_chains
-- Chains with more than one row.
SELECT c.chain FROM audit_chains c LEFT JOIN replicas r ON r.owner = c.chain
WHERE r.owner IS NULL AND (:parts::integer = 1 OR abs(hashtext(c.chain) % :parts) = :part)
  AND (SELECT min(number) FROM audit WHERE chain = c.chain COLLATE "default")
    < (SELECT max(number) FROM audit WHERE chain = c.chain COLLATE "default")
ORDER BY c.began_ms, c.chain LIMIT 1000;

-- name: cut_chain
UPDATE audit_chains SET cut = :cut WHERE chain = :of;

-- name: forget_audit_of
DELETE FROM audit a WHERE chain = :of AND number <= :number AND number < (SELECT max(number) FROM audit WHERE chain = :of);

-- name: audit_of
SELECT number, hash, content FROM audit WHERE chain = :of AND number > :number ORDER BY number LIMIT :limit;
