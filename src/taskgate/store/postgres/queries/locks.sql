-- name: resolve_locks
-- An approval of a task is guarded by its task, and every change of a task is told to its caller. Neither ever changes.
SELECT coalesce(a.task_id, a.id), coalesce(t.caller, '')
FROM approvals a LEFT JOIN tasks t ON t.id = a.task_id WHERE a.id = ANY(:approvals)
UNION ALL
SELECT id, caller FROM tasks WHERE id = ANY(:tasks);

-- name: take_locks
-- In the order given, which is the same for everybody.
SELECT count(pg_advisory_xact_lock(wanted.number)) FROM unnest(:numbers::bigint[]) WITH ORDINALITY AS wanted (number, place);

-- name: begin_write
SELECT pg_current_xact_id()::text, (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: xact_status
SELECT pg_xact_status(:xid::text::xid8);
