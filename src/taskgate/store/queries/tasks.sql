-- name: insert_task
INSERT INTO tasks (id, principal, caller, limited_as, scope, server, wire_name, state, owner, fence, revision, needs_owner, finished_ms,
                   keep_until_ms, approval_due_ms, execution_due_ms, doc)
VALUES (:id, :principal, :caller, :limited_as, :scope, :server, :wire_name, :state, :owner, :fence, :revision, :needs_owner, :finished_ms,
        :keep_until_ms, :approval_due_ms, :execution_due_ms, :doc)
ON CONFLICT (id) DO NOTHING;

-- name: update_task
UPDATE tasks
SET state = :state, revision = :revision, needs_owner = :needs_owner, finished_ms = :finished_ms,
    keep_until_ms = :keep_until_ms, approval_due_ms = :approval_due_ms, execution_due_ms = :execution_due_ms, doc = :doc
WHERE id = :id AND fence = :fence AND revision = :revision - 1;

-- name: insert_call
INSERT INTO task_calls (task_id, arguments, params_rest) VALUES (:task_id, :arguments, :params_rest);

-- name: insert_outcome
INSERT INTO task_outcomes (task_id, body, spill) VALUES (:task_id, :body::bytea, :spill::text);

-- name: find_outcome
SELECT o.body, o.spill, t.keep_until_ms
FROM task_outcomes o JOIN tasks t ON t.id = o.task_id
WHERE o.task_id = :task_id;

-- name: put_attempt
INSERT INTO attempts (task_id, number, fence, byte_hash, upstream, sent_at_ms, state, ended_ms, why)
VALUES (:task_id, :number, :fence, :byte_hash, :upstream, :sent_at_ms, :state, :ended_ms::bigint, :why)
ON CONFLICT (task_id, number) DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms, why = excluded.why;

-- name: attempts_of_task
SELECT number, fence, byte_hash, upstream, sent_at_ms, state, ended_ms, why
FROM attempts WHERE task_id = :task_id ORDER BY number DESC LIMIT :limit;

-- name: count_open
SELECT count(*) FROM tasks WHERE finished_ms IS NULL;

-- name: count_open_of_caller
SELECT coalesce(sum(count), 0)::bigint FROM open_counts WHERE what = 'task' AND who = :limited_as;

-- name: count_open_of_conversation
-- For a caller without an identity, at its address only: callers elsewhere may use the same name. Counts no further than the limit.
SELECT count(*) FROM (
    SELECT 1 FROM tasks
    WHERE caller = :caller AND limited_as = :limited_as AND finished_ms IS NULL AND principal = 'anonymous' LIMIT :maximum
) AS counted;

-- name: count_open_of_tenant
SELECT coalesce(sum(count), 0)::bigint FROM open_counts WHERE what = :what AND who = :tenant;

-- name: due_approvals
SELECT id FROM tasks WHERE approval_due_ms IS NOT NULL AND approval_due_ms <= :now_ms ORDER BY approval_due_ms LIMIT :limit;

-- name: due_executions
SELECT id FROM tasks WHERE execution_due_ms IS NOT NULL AND execution_due_ms <= :now_ms
ORDER BY execution_due_ms LIMIT :limit;

-- name: insert_question
-- A server may reuse a key after it got the answer: that is a new question.
INSERT INTO questions (task_id, key, place, server, method, request, asked_ms, expires_ms, shown_as, state)
SELECT :task_id, :key, count(*), :server, :method, :request, :asked_ms, :expires_ms::bigint, :shown_as::text, 'open'
FROM questions WHERE task_id = :task_id
ON CONFLICT (task_id, key) DO UPDATE SET
    place = excluded.place, method = excluded.method, request = excluded.request, asked_ms = excluded.asked_ms,
    expires_ms = excluded.expires_ms, shown_as = excluded.shown_as, state = 'open', answer = NULL, answered_ms = NULL
WHERE questions.state <> 'open';

-- name: answer_question
UPDATE questions SET state = 'answered', answer = :answer, answered_ms = :now_ms WHERE task_id = :task_id AND key = :key AND state = 'open';

-- name: withdraw_question
UPDATE questions SET state = 'withdrawn' WHERE task_id = :task_id AND key = :key AND state = 'open';

-- name: withdraw_questions
UPDATE questions SET state = 'withdrawn' WHERE task_id = :task_id AND state = 'open';

-- name: withdraw_questions_of
UPDATE questions SET state = 'withdrawn' WHERE task_id IN (SELECT value FROM json_each(:ids)) AND state = 'open';

-- name: first_asked
SELECT min(asked_ms) FROM questions WHERE task_id = :task_id AND key IN (SELECT value FROM json_each(:keys));

-- name: questions_of_task
SELECT key, server, method, request, expires_ms, asked_ms, answer, shown_as, answered_ms
FROM questions WHERE task_id = :task_id AND state = :state
ORDER BY place;

-- name: find_key
SELECT call, task_id, created_ms, executed FROM idempotency_keys WHERE principal = :principal AND key = :key;

-- name: drop_key_of_task
DELETE FROM idempotency_keys WHERE principal = :principal AND key = :key AND task_id = :task_id;

-- name: put_key
INSERT INTO idempotency_keys (principal, key, call, task_id, created_ms) VALUES (:principal, :key, :call, :task_id, :created_ms)
ON CONFLICT (principal, key) DO UPDATE
SET call = excluded.call, task_id = excluded.task_id, created_ms = excluded.created_ms, executed = NULL;
