-- name: insert_tasks
INSERT INTO tasks (id, principal, caller, limited_as, scope, server, wire_name, state, owner, fence, revision, needs_owner, finished_ms,
                   keep_until_ms, approval_due_ms, execution_due_ms, doc)
SELECT * FROM unnest(:id::text[], :principal::text[], :caller::text[], :limited_as::text[], :scope::text[], :server::text[],
                     :wire_name::text[], :state::text[], :owner::text[], :fence::bigint[], :revision::bigint[],
                     :needs_owner::smallint[], :finished_ms::bigint[],
                     :keep_until_ms::bigint[], :approval_due_ms::bigint[], :execution_due_ms::bigint[], :doc::bytea[])
ON CONFLICT (id) DO NOTHING;

-- name: insert_calls
INSERT INTO task_calls (task_id, arguments, params_rest)
SELECT * FROM unnest(:task_id::text[], :arguments::bytea[], :params_rest::bytea[]);

-- name: find_task
-- Here and in other joins: `tasks.id`, `event_streams.caller` and `audit_chains.chain` have the collation "C", the columns that refer
-- to them do not, and an index is used only for comparisons in its own collation. So each join names the collation of the index.
SELECT t.doc, t.owner, t.fence, c.arguments, c.params_rest
FROM tasks t JOIN task_calls c ON c.task_id = t.id COLLATE "default"
WHERE t.id = :id;

-- name: find_tasks_of
SELECT t.id, t.doc, t.owner, t.fence, c.arguments, c.params_rest
FROM tasks t
CROSS JOIN LATERAL (SELECT arguments, params_rest FROM task_calls WHERE task_id = t.id COLLATE "default" LIMIT 1) AS c
WHERE t.id = ANY(:tasks::text[]);

-- name: insert_outcomes
INSERT INTO task_outcomes (task_id, body, spill) SELECT * FROM unnest(:task_id::text[], :body::bytea[], :spill::text[]);

-- name: update_tasks
UPDATE tasks
SET state = given.state, revision = given.revision, needs_owner = given.needs_owner, finished_ms = given.finished_ms,
    keep_until_ms = given.keep_until_ms, approval_due_ms = given.approval_due_ms, execution_due_ms = given.execution_due_ms, doc = given.doc
FROM unnest(:id::text[], :fence::bigint[], :state::text[], :revision::bigint[], :needs_owner::smallint[], :finished_ms::bigint[],
            :keep_until_ms::bigint[], :approval_due_ms::bigint[], :execution_due_ms::bigint[], :doc::bytea[])
     AS given (id, fence, state, revision, needs_owner, finished_ms, keep_until_ms, approval_due_ms, execution_due_ms, doc)
WHERE tasks.id = given.id AND tasks.fence = given.fence AND tasks.revision = given.revision - 1;

-- name: put_attempts
INSERT INTO attempts (task_id, number, fence, byte_hash, upstream, sent_at_ms, state, ended_ms, why)
SELECT * FROM unnest(:task_id::text[], :number::bigint[], :fence::bigint[], :byte_hash::text[], :upstream::text[],
                     :sent_at_ms::bigint[], :state::text[], :ended_ms::bigint[], :why::text[])
ON CONFLICT (task_id, number) DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms, why = excluded.why;

-- name: page_of_tasks
SELECT t.doc, t.owner, t.fence, CASE WHEN length(c.arguments) <= :arguments_up_to THEN c.arguments ELSE ''::bytea END
FROM (
    SELECT id
    FROM tasks
    WHERE caller = :caller
      AND id < coalesce(:after::text, '~')
      AND (:server::text IS NULL OR server = :server)
      AND (:states::text IS NULL OR strpos(:states, ',' || state || ',') > 0)
      AND (:include_expired::boolean OR keep_until_ms IS NULL OR keep_until_ms > :now_ms)
    ORDER BY id DESC
    LIMIT :limit
) AS wanted
JOIN tasks t ON t.id = wanted.id
CROSS JOIN LATERAL (SELECT arguments FROM task_calls WHERE task_id = wanted.id COLLATE "default" LIMIT 1) AS c
ORDER BY t.id DESC;

-- name: page_of_all_tasks
SELECT t.doc, t.owner, t.fence, CASE WHEN length(c.arguments) <= :arguments_up_to THEN c.arguments ELSE ''::bytea END
FROM tasks t CROSS JOIN LATERAL (SELECT arguments FROM task_calls WHERE task_id = t.id COLLATE "default" LIMIT 1) AS c
WHERE t.id < coalesce(:after::text, '~')
  AND (:server::text IS NULL OR t.server = :server)
  AND (:states::text IS NULL OR strpos(:states, ',' || t.state || ',') > 0)
  AND (:include_expired::boolean OR t.keep_until_ms IS NULL OR t.keep_until_ms > :now_ms)
ORDER BY t.id DESC
LIMIT :limit;

-- name: find_tasks
SELECT doc, owner, fence
FROM tasks
WHERE id >= :first AND id < :before
  AND (:server::text IS NULL OR server = :server)
  AND (:states::text IS NULL OR strpos(:states, ',' || state || ',') > 0)
  AND (keep_until_ms IS NULL OR keep_until_ms > :now_ms)
  AND (:principal::text IS NULL OR principal = :principal)
  AND (:tenant::text IS NULL OR strpos(principal, :tenant || '/') = 1)
  AND (:scope::text IS NULL OR scope = :scope)
  AND (:tool::text IS NULL OR strpos(wire_name, :tool) > 0)
  AND (:part_1::text IS NULL OR lower(wire_name || ' ' || principal || ' ' || server || ' ' || scope || ' ' || id COLLATE "C") LIKE ALL (
    array_remove(ARRAY[:part_1::text, :part_2::text, :part_3::text, :part_4::text], NULL)))
ORDER BY id DESC
LIMIT :limit;

-- name: find_open_tasks
SELECT doc, owner, fence
FROM tasks
WHERE finished_ms IS NULL AND id >= :first AND id < :before
  AND (:server::text IS NULL OR server = :server)
  AND (:states::text IS NULL OR strpos(:states, ',' || state || ',') > 0)
  AND (keep_until_ms IS NULL OR keep_until_ms > :now_ms)
  AND (:principal::text IS NULL OR principal = :principal)
  AND (:tenant::text IS NULL OR strpos(principal, :tenant || '/') = 1)
  AND (:scope::text IS NULL OR scope = :scope)
  AND (:tool::text IS NULL OR strpos(wire_name, :tool) > 0)
  AND (:part_1::text IS NULL OR lower(wire_name || ' ' || principal || ' ' || server || ' ' || scope || ' ' || id COLLATE "C") LIKE ALL (
    array_remove(ARRAY[:part_1::text, :part_2::text, :part_3::text, :part_4::text], NULL)))
ORDER BY id DESC
LIMIT :limit;

-- name: tasks_ended_badly
SELECT doc, owner, fence
FROM tasks
WHERE state IN ('failed', 'cancelled', 'rejected', 'expired', 'outcome_unknown')
  AND finished_ms >= :since_ms
  AND (keep_until_ms IS NULL OR keep_until_ms > :now_ms)
  AND (:principal::text IS NULL OR principal = :principal)
  AND (:tenant::text IS NULL OR strpos(principal, :tenant || '/') = 1)
ORDER BY finished_ms DESC, id DESC
LIMIT :limit;

-- name: count_open_of_callers
SELECT who, sum(count)::bigint FROM open_counts WHERE what = 'task' AND who = ANY(:callers::text[]) GROUP BY who;
