-- name: own_task
UPDATE tasks SET owner = :owner, fence = :fence WHERE id = :id;

-- name: expire_tasks
-- Does not return tasks that another gateway has expired meanwhile.
UPDATE tasks SET forget_at_ms = :forget_at_ms, needs_owner = 0
WHERE id IN (SELECT value FROM json_each(:ids)) AND forget_at_ms IS NULL
RETURNING id;

-- name: forget_tasks
DELETE FROM tasks WHERE id IN (SELECT value FROM json_each(:ids));

-- name: forget_calls
DELETE FROM task_calls WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: forget_outcomes
DELETE FROM task_outcomes WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: forget_attempts
DELETE FROM attempts WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: forget_questions
DELETE FROM questions WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: streams_after
SELECT caller, touched_ms FROM event_streams WHERE caller > :after ORDER BY caller LIMIT :limit;

-- name: forget_approvals
DELETE FROM approvals WHERE id IN (SELECT value FROM json_each(:ids));

-- name: forget_receipts
DELETE FROM channel_receipts WHERE approval_id IN (SELECT value FROM json_each(:ids));

-- name: forget_grants
DELETE FROM grants WHERE until_ms <= :before_ms;

-- name: spill_names
SELECT spill FROM task_outcomes WHERE spill IS NOT NULL;

-- name: keep
INSERT INTO keepsakes (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING;

-- name: drop_kept
DELETE FROM keepsakes WHERE name = :name;

-- name: kept
SELECT value FROM keepsakes WHERE name = :name;
