-- name: take_fence
INSERT INTO owners (owner, fence, started_ms, seen_ms)
SELECT :owner, coalesce(max(fence), 0) + 1, :now_ms, :now_ms FROM owners WHERE true
ON CONFLICT (owner) DO UPDATE
SET fence = excluded.fence, started_ms = excluded.started_ms, seen_ms = excluded.seen_ms, retired = 0
RETURNING fence;

-- name: find_owner
SELECT fence, retired FROM owners WHERE owner = :owner;

-- name: touch_owner
UPDATE owners SET seen_ms = :now_ms WHERE owner = :owner;

-- name: dead_owners
-- A file has one process, which holds the lock: every other owner is an earlier start.
SELECT owner FROM owners WHERE owner <> :owner;

-- name: retire_owners
UPDATE owners SET retired = 1 WHERE retired = 0 AND owner IN (SELECT value FROM json_each(:owners));

-- name: claim_tasks
UPDATE tasks SET owner = :owner, fence = :fence
WHERE id IN (
    SELECT id FROM tasks INDEXED BY tasks_open WHERE finished_ms IS NULL
    UNION ALL
    SELECT id FROM tasks INDEXED BY tasks_cancel_owed WHERE needs_owner = 1 AND finished_ms IS NOT NULL
)
  AND needs_owner = 1 AND fence < :fence AND (owner = :owner OR owner IN (SELECT value FROM json_each(:owners)))
RETURNING id;

-- name: claimed_ids
SELECT id FROM (
    SELECT id FROM (
        SELECT id FROM tasks INDEXED BY tasks_open
        WHERE finished_ms IS NULL AND id > :after AND owner = :owner AND fence = :fence ORDER BY id LIMIT :limit
    )
    UNION ALL
    SELECT id FROM (
        SELECT id FROM tasks INDEXED BY tasks_cancel_owed
        WHERE needs_owner = 1 AND finished_ms IS NOT NULL AND id > :after AND owner = :owner AND fence = :fence ORDER BY id LIMIT :limit
    )
)
ORDER BY id LIMIT :limit;

-- name: our_tasks
SELECT t.doc, t.owner, t.fence, c.arguments, c.params_rest
FROM tasks t JOIN task_calls c ON c.task_id = t.id
WHERE t.id IN (SELECT value FROM json_each(:ids)) AND t.owner = :owner AND t.fence = :fence
ORDER BY t.id;

-- name: expiring_tasks
SELECT t.doc, t.owner, t.fence, o.spill
FROM tasks t LEFT JOIN task_outcomes o ON o.task_id = t.id
WHERE t.keep_until_ms IS NOT NULL AND t.keep_until_ms <= :now_ms AND t.forget_at_ms IS NULL
  -- A task whose server must still be notified of a cancellation is kept for a further day.
  AND (t.needs_owner = 0 OR t.keep_until_ms <= :now_ms - 86400000)
ORDER BY t.keep_until_ms
LIMIT :limit;

-- name: forgettable_tasks
SELECT id FROM tasks WHERE forget_at_ms IS NOT NULL AND forget_at_ms <= :now_ms ORDER BY forget_at_ms LIMIT :limit;

-- name: remember_executed
UPDATE idempotency_keys
SET executed = (SELECT json_extract(CAST(doc AS TEXT), '$.executed') FROM tasks WHERE tasks.id = task_id)
WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: forget_keys
DELETE FROM idempotency_keys WHERE (principal, key) IN (
    SELECT principal, key FROM idempotency_keys WHERE created_ms <= :before_ms ORDER BY created_ms LIMIT :limit
);

-- name: forget_events
DELETE FROM events
WHERE (caller, number) IN (SELECT caller, number FROM events WHERE at_ms <= :before_ms ORDER BY at_ms LIMIT :limit);

-- name: forget_streams
DELETE FROM event_streams
WHERE caller IN (SELECT value FROM json_each(:callers)) AND touched_ms <= :before_ms
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.caller = event_streams.caller);

-- name: forgettable_approvals
SELECT id FROM approvals
WHERE asked_ms <= :before_ms AND state NOT IN ('open', 'approved')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = approvals.task_id)
ORDER BY asked_ms, id LIMIT :limit;
