-- name: update_approval
UPDATE approvals SET state = :state, due_ms = :due_ms, decided_ms = :decided_ms, doc = :doc WHERE id = :id;

-- name: find_approval
SELECT doc, caller, wire_name, arguments, task_id FROM approvals WHERE id = :id;

-- name: page_of_open_approvals
SELECT doc, caller, wire_name, arguments, task_id
FROM approvals
WHERE state = 'open' AND (asked_ms, id) > (:asked_ms, :id)
  AND (:begins::text IS NULL OR substr(caller, 1, length(:begins::text)) = :begins)
ORDER BY asked_ms, id
LIMIT :limit;

-- name: page_of_approvals
SELECT doc, caller, wire_name, arguments, task_id
FROM approvals
WHERE (asked_ms, id) > (:asked_ms, :id)
  AND (:begins::text IS NULL OR substr(caller, 1, length(:begins::text)) = :begins)
ORDER BY asked_ms, id
LIMIT :limit;

-- name: count_pending
-- By the counts of callers: every page of the console has this number.
SELECT coalesce(sum(count), 0)::bigint FROM open_counts WHERE what = 'approval';

-- name: count_pending_of_tenant
SELECT coalesce(sum(count), 0)::bigint FROM open_counts WHERE what = 'tenant approval' AND who = :tenant;

-- name: count_pending_of_caller
SELECT coalesce(sum(count), 0)::bigint FROM open_counts WHERE what = 'approval' AND who = :caller;

-- name: count_pending_of_anonymous
SELECT coalesce(sum(count), 0)::bigint FROM open_counts WHERE what = 'anonymous approval' AND who = '';

-- name: due_holds
SELECT id FROM approvals WHERE due_ms IS NOT NULL AND due_ms <= :now_ms AND task_id IS NULL ORDER BY due_ms LIMIT :limit;

-- name: last_given_approval
SELECT doc, caller, wire_name, arguments, task_id
FROM approvals
WHERE server = :server AND tool = :tool AND state IN ('approved', 'used') AND (:before::text IS NULL OR id <> :before)
ORDER BY decided_ms DESC
LIMIT 1;

-- name: unspent_approvals
SELECT id FROM approvals WHERE state IN ('open', 'approved') ORDER BY id;

-- name: put_grant
INSERT INTO grants (id, until_ms, revoked, doc) VALUES (:id, :until_ms, :revoked, :doc)
ON CONFLICT (id) DO UPDATE SET until_ms = excluded.until_ms, revoked = excluded.revoked, doc = excluded.doc;

-- name: find_grant
SELECT doc FROM grants WHERE id = :id;

-- name: live_grants
SELECT doc FROM grants WHERE revoked IN (0, 2) AND until_ms > :now_ms ORDER BY id;

-- name: all_grants
SELECT doc FROM grants ORDER BY id;

-- name: put_pin
INSERT INTO pins (server, tool, doc, by, at_ms) VALUES (:server, :tool, :doc, :by, :at_ms)
ON CONFLICT (server, tool) DO UPDATE SET doc = excluded.doc, by = excluded.by, at_ms = excluded.at_ms;

-- name: keep_earlier_pin
INSERT INTO earlier_pins (server, tool, at_ms, doc, by)
SELECT server, tool, at_ms, doc, by FROM pins WHERE server = :server AND tool = :tool
ON CONFLICT (server, tool, at_ms) DO NOTHING;

-- name: forget_earlier_pins
DELETE FROM earlier_pins WHERE server = :server AND tool = :tool AND at_ms < (
    SELECT at_ms FROM earlier_pins WHERE server = :server AND tool = :tool ORDER BY at_ms DESC LIMIT 1 OFFSET :others
);

-- name: accepted_definitions
SELECT server, tool, doc, by, at_ms FROM (
    SELECT server, tool, doc, by, at_ms, 0 AS earlier FROM pins WHERE server = :server AND tool = :tool
    UNION ALL
    SELECT server, tool, doc, by, at_ms, 1 AS earlier FROM earlier_pins WHERE server = :server AND tool = :tool
) AS accepted ORDER BY earlier, at_ms DESC;

-- name: erase_accepter
UPDATE pins SET by = '' WHERE by = :principal;

-- name: erase_earlier_accepter
UPDATE earlier_pins SET by = '' WHERE by = :principal;

-- name: all_pins
SELECT server, tool, doc, by, at_ms FROM pins WHERE :server::text IS NULL OR server = :server ORDER BY server, tool;

-- name: put_receipt
INSERT INTO channel_receipts (approval_id, place, workflow, receipt) VALUES (:approval_id, :place, :workflow, :receipt)
ON CONFLICT (approval_id, place) DO UPDATE SET workflow = excluded.workflow, receipt = excluded.receipt;

-- name: drop_receipt
DELETE FROM channel_receipts WHERE approval_id = :approval_id AND place = :place;

-- name: all_receipts
SELECT approval_id, place, workflow, receipt FROM channel_receipts ORDER BY approval_id, place LIMIT :limit;

-- name: put_first_pin
INSERT INTO pins (server, tool, doc, by, at_ms) VALUES (:server, :tool, :doc, :by, :at_ms) ON CONFLICT (server, tool) DO NOTHING;

-- name: find_pin
SELECT server, tool, doc, by, at_ms FROM pins WHERE server = :server AND tool = :tool;

-- name: held_calls
SELECT doc, task_id FROM approvals
WHERE caller = :caller AND state = 'open' AND task_id IS NOT NULL AND server = :server AND tool = :tool
ORDER BY asked_ms, id LIMIT :limit;
