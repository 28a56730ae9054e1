-- name: take_fence
INSERT INTO owners (owner, fence, started_ms) VALUES (:owner, nextval('fences'), :now_ms)
ON CONFLICT (owner) DO UPDATE SET fence = excluded.fence, started_ms = excluded.started_ms, retired = false
RETURNING fence;

-- name: find_owner
-- Shared lock until the commit: no gateway can retire this one while a write is in progress.
SELECT fence, retired FROM owners WHERE owner = :owner FOR SHARE;

-- name: dead_owners
-- Gateways that ended normally have no lease; the leases of the others have expired. Rows that another gateway is processing
-- are skipped.
SELECT o.owner FROM owners o LEFT JOIN replicas r ON r.owner = o.owner
WHERE o.owner <> :owner AND (r.owner IS NULL OR r.seen_ms < :dead_ms)
  AND (NOT o.retired OR EXISTS (SELECT 1 FROM tasks t WHERE t.owner = o.owner AND t.needs_owner = 1))
FOR UPDATE OF o SKIP LOCKED;

-- name: retire_owners
UPDATE owners SET retired = true WHERE NOT retired AND owner IN (SELECT json_array_elements_text(:owners::json));

-- name: claim_tasks
-- Fences are tested for equality, not order: a gateway with a higher fence can be dead too.
UPDATE tasks SET owner = :owner, fence = :fence
WHERE id = ANY(ARRAY(
    SELECT id FROM tasks
    WHERE needs_owner = 1
      AND owner = ANY(ARRAY(SELECT json_array_elements_text(:owners::json) UNION ALL SELECT :owner::text))
      AND (owner <> :owner OR fence < :fence)
    ORDER BY id LIMIT 2000 FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: claimed_ids
SELECT id FROM tasks WHERE needs_owner = 1 AND id > :after AND owner = :owner AND fence = :fence ORDER BY id LIMIT :limit;

-- name: our_tasks
SELECT t.doc, t.owner, t.fence, c.arguments, c.params_rest
FROM tasks t
CROSS JOIN LATERAL (SELECT arguments, params_rest FROM task_calls WHERE task_id = t.id COLLATE "default" LIMIT 1) AS c
WHERE t.id = ANY(ARRAY(SELECT json_array_elements_text(:ids::json))) AND t.owner = :owner AND t.fence = :fence
ORDER BY t.id;

-- name: expiring_tasks
SELECT t.doc, t.owner, t.fence, (SELECT spill FROM task_outcomes WHERE task_id = t.id COLLATE "default")
FROM tasks t
WHERE t.keep_until_ms IS NOT NULL AND t.keep_until_ms <= :now_ms AND t.forget_at_ms IS NULL
  -- A task whose server must still be notified of a cancellation is kept for a further day.
  AND (t.needs_owner = 0 OR t.keep_until_ms <= :now_ms - 86400000)
  -- Each gateway has its own share, so that they do not wait for each other.
  AND (:parts::integer = 1 OR abs(hashtext(t.id) % :parts) = :part)
ORDER BY t.keep_until_ms
LIMIT :limit;

-- name: forgettable_tasks
SELECT id FROM tasks WHERE forget_at_ms IS NOT NULL AND forget_at_ms <= :now_ms ORDER BY forget_at_ms LIMIT :limit
FOR UPDATE SKIP LOCKED;

-- name: remember_executed
UPDATE idempotency_keys
SET executed = (SELECT convert_from(doc, 'UTF8')::json ->> 'executed' FROM tasks WHERE tasks.id = task_id)
WHERE task_id = ANY(ARRAY(SELECT json_array_elements_text(:ids::json)));

-- name: forget_keys
-- By the physical location of rows that are locked until the commit: other conditions make the planner scan the whole table.
DELETE FROM idempotency_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM idempotency_keys WHERE created_ms <= :before_ms ORDER BY created_ms LIMIT :limit FOR UPDATE SKIP LOCKED
));

-- name: forget_events
DELETE FROM events WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM events WHERE at_ms <= :before_ms ORDER BY at_ms LIMIT :limit FOR UPDATE SKIP LOCKED
));

-- name: forget_streams
DELETE FROM event_streams
WHERE caller = ANY(ARRAY(SELECT json_array_elements_text(:callers::json))) AND touched_ms <= :before_ms
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.caller = event_streams.caller COLLATE "default");

-- name: forgettable_approvals
SELECT id FROM approvals
WHERE asked_ms <= :before_ms AND state NOT IN ('open', 'approved')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = approvals.task_id)
ORDER BY asked_ms, id LIMIT :limit FOR UPDATE OF approvals SKIP LOCKED;

-- name: keep_instead
UPDATE keepsakes SET value = :value WHERE name = :name AND value = :before;

-- name: orphan_chunks
SELECT DISTINCT name FROM result_chunks c
WHERE created_ms <= :before_ms AND number = 0 AND NOT EXISTS (SELECT 1 FROM task_outcomes o WHERE o.spill = c.name)
LIMIT 100;
