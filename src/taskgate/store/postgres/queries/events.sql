-- name: hold_streams
-- Locks the streams of all callers that a batch may append to, until the commit and in one order.
INSERT INTO event_streams (caller, last, touched_ms)
SELECT listed.caller, 0, :now_ms::bigint FROM unnest(:callers::text[]) AS listed (caller) ORDER BY listed.caller COLLATE "C"
ON CONFLICT (caller) DO UPDATE SET touched_ms = excluded.touched_ms
RETURNING caller, last;

-- name: numbers_given
UPDATE event_streams SET last = given.number, touched_ms = :now_ms
FROM unnest(:callers::text[], :numbers::bigint[]) AS given (caller, number)
WHERE event_streams.caller = given.caller;

-- name: insert_events
INSERT INTO events (caller, number, id, kind, server, at_ms, data)
SELECT * FROM unnest(:caller::text[], :number::bigint[], :id::text[], :kind::text[], :server::text[], :at_ms::bigint[], :data::bytea[]);

-- name: last_audit
SELECT number, hash FROM audit WHERE chain = :chain ORDER BY number DESC LIMIT 1;

-- name: insert_audit
INSERT INTO audit (chain, number, hash, content) VALUES (:chain, :number, :hash, :content);

-- name: insert_audit_rows
INSERT INTO audit (chain, number, hash, content)
SELECT :chain::text, added.* FROM unnest(:number::bigint[], :hash::text[], :content::bytea[]) AS added;

-- name: forget_audit
-- The last row is never deleted: the chain continues from it.
DELETE FROM audit a WHERE chain = :chain AND number <= :number AND number < (SELECT max(number) FROM audit WHERE chain = :chain);

-- name: audit_after
SELECT number, hash, content FROM audit WHERE chain = :chain AND number > :number ORDER BY number LIMIT :limit;
