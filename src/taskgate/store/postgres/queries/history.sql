-- name: insert_history_rows
INSERT INTO history (number, kind, outcome, task_id, caller, tenant, scope, server, tool, client, error_type, rule, approved_by, doc)
SELECT * FROM unnest(
    :number::bigint[], :kind::text[], :outcome::text[], :task_id::text[], :caller::text[], :tenant::text[], :scope::text[], :server::text[],
    :tool::text[], :client::text[], :error_type::text[], :rule::text[], :approved_by::text[], :doc::bytea[]
)
ON CONFLICT DO NOTHING;

-- name: history_matching
-- Never prepared: each set of filters needs a plan of its own. Where the planner reads rows in their order and not by the index of words,
-- the part of a name is compared first: `to_tsvector` takes ten times as long.
SELECT number, kind, outcome, task_id, caller, scope, server, tool, client, error_type, rule, approved_by, doc
FROM history
WHERE number >= :first AND number < :before
  AND (:tenant::text IS NULL OR (tenant = :tenant AND tenant <> ''))
  AND (:caller::text IS NULL OR caller = :caller)
  AND (:scope::text IS NULL OR scope = :scope)
  AND (:server::text IS NULL OR server = :server)
  AND (:tool::text IS NULL OR tool = :tool)
  AND (:client::text IS NULL OR client = :client)
  AND (:error_type::text IS NULL OR (error_type = :error_type AND error_type <> ''))
  AND (:kind::text IS NULL OR kind = :kind)
  AND (:outcomes::text IS NULL OR outcome = ANY(string_to_array(trim(:outcomes, ','), ',')))
  AND (:contained::text IS NULL OR strpos(lower(
    tool || ' ' || server || ' ' || caller || ' ' || scope || ' ' || client || ' ' || error_type || ' ' || rule COLLATE "C"), :contained::text) > 0)
  AND (:words::text IS NULL OR to_tsvector('simple', translate(
    tool || ' ' || server || ' ' || caller || ' ' || scope || ' ' || client || ' ' || error_type || ' ' || rule, '!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~', repeat(' ', 32))
  ) @@ to_tsquery('simple', :words))
ORDER BY number DESC LIMIT :limit;

-- name: forget_history_of
DELETE FROM history WHERE number = ANY(ARRAY(SELECT number FROM history WHERE caller = :caller ORDER BY number LIMIT :limit))
RETURNING task_id;

-- name: add_history_counts
INSERT INTO history_counts (period, dimension, name, start_ms, tenant, outcome, step, calls)
SELECT r ->> 0, r ->> 1, r ->> 2, (r ->> 3)::bigint, r ->> 4, r ->> 5, (r ->> 6)::integer, (r ->> 7)::bigint
FROM json_array_elements(:rows::json) AS r
ON CONFLICT (period, dimension, name, start_ms, tenant, outcome, step) DO UPDATE SET calls = history_counts.calls + excluded.calls;

-- name: insert_sums_rows
INSERT INTO call_sums (at_ms, body) SELECT * FROM unnest(:at_ms::bigint[], :body::bytea[]);

-- name: drop_sums
DELETE FROM call_sums WHERE number = ANY(ARRAY(SELECT json_array_elements_text(:numbers::json)::bigint));

-- name: erase_approver
UPDATE history SET approved_by = trim(replace(', ' || approved_by || ', ', ', ' || :caller || ', ', ', (erased), '), ', ')
WHERE approved_by <> '' AND position(', ' || :caller || ', ' IN ', ' || approved_by || ', ') > 0;

-- name: history_days
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'history'::regclass ORDER BY c.relname;

-- name: history_needs_key
SELECT EXISTS (SELECT 1 FROM history_content WHERE substring(body FROM 1 FOR :length) = :prefix);

-- name: forget_old_history
DELETE FROM history WHERE number = ANY(ARRAY(SELECT number FROM history WHERE number < :before ORDER BY number LIMIT :limit))
RETURNING task_id;

-- name: forget_old_history_content
DELETE FROM history_content WHERE task_id = ANY(ARRAY(
    SELECT task_id FROM history_content WHERE at_ms < :before_ms ORDER BY at_ms LIMIT :limit
));

-- name: forget_history_counts
-- Sorted, so that the rows are found by the index of time and not by reading the table.
DELETE FROM history_counts WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM history_counts
    WHERE period = :period AND dimension = :dimension AND start_ms < :before_ms ORDER BY start_ms LIMIT :limit
));
