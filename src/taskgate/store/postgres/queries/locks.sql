-- name: resolve_locks
-- The lock of a task covers its approval, and every change of a task appends to its caller's stream. Neither relation changes.
SELECT coalesce(a.task_id, a.id), coalesce(t.caller, '')
FROM approvals a LEFT JOIN tasks t ON t.id = a.task_id WHERE a.id = ANY(:approvals)
UNION ALL
SELECT id, caller FROM tasks WHERE id = ANY(:tasks);

-- name: take_locks
-- In the given order, which is the same at every gateway.
SELECT count(pg_advisory_xact_lock(wanted.number)) FROM unnest(:numbers::bigint[]) WITH ORDINALITY AS wanted (number, place);

-- name: begin_write
-- Writes the number of this transaction first: its row is locked until the end, so `last_write` waits for it.
WITH marked AS (
    INSERT INTO last_writes (owner, number) VALUES (:owner, :number)
    ON CONFLICT (owner) DO UPDATE SET number = excluded.number RETURNING owner
)
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM marked;

-- name: last_write
-- Waits while a transaction of this gateway whose connection was lost is still running on the server.
INSERT INTO last_writes (owner, number) VALUES (:owner, 0)
ON CONFLICT (owner) DO UPDATE SET number = last_writes.number RETURNING number;
