-- name: put_lease
INSERT INTO replicas (owner, address, version, configuration, internal, interpreter, started_ms, seen_ms)
VALUES (:owner, :address, :version, :configuration, :internal, :interpreter, :now_ms, :now_ms)
ON CONFLICT (owner) DO UPDATE SET address = excluded.address, version = excluded.version,
    configuration = excluded.configuration, internal = excluded.internal, interpreter = excluded.interpreter,
    started_ms = excluded.started_ms, seen_ms = excluded.seen_ms;

-- name: renew_lease
UPDATE replicas SET seen_ms = :now_ms, configuration = :configuration, interpreter = :interpreter WHERE owner = :owner;

-- name: end_lease
DELETE FROM replicas WHERE owner = :owner;

-- name: end_leases
DELETE FROM replicas;

-- name: own_approval
UPDATE approvals SET owner = :owner
WHERE id = :id AND task_id IS NULL
  AND (owner = :owner OR NOT EXISTS (SELECT 1 FROM replicas r WHERE r.owner = approvals.owner AND r.seen_ms >= :dead_ms));

-- name: seen_replicas
SELECT owner, address, version, configuration, started_ms, seen_ms, internal FROM replicas ORDER BY started_ms, owner;

-- name: leases
-- As seen_replicas, which older schemas have too.
SELECT owner, address, version, configuration, started_ms, seen_ms, internal, interpreter FROM replicas ORDER BY started_ms, owner;

-- name: dead_seen
SELECT count(*) FROM owners o LEFT JOIN replicas r ON r.owner = o.owner
WHERE o.owner <> :owner AND (r.owner IS NULL OR r.seen_ms < :dead_ms)
  AND (NOT o.retired OR EXISTS (SELECT 1 FROM tasks t WHERE t.owner = o.owner AND t.needs_owner = 1));

-- name: forget_replicas
DELETE FROM replicas WHERE seen_ms < :before_ms;

-- name: forget_owners
DELETE FROM owners o
WHERE o.retired AND o.owner <> :owner AND o.started_ms <= :before_ms
  AND NOT EXISTS (SELECT 1 FROM replicas r WHERE r.owner = o.owner)
  AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.owner = o.owner AND t.needs_owner = 1);

-- name: forget_last_writes
DELETE FROM last_writes w WHERE NOT EXISTS (SELECT 1 FROM owners o WHERE o.owner = w.owner COLLATE "default");

-- name: database_now
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: standing_of_owner
SELECT fence, retired FROM owners WHERE owner = :owner;

-- name: bump_revisions
INSERT INTO revisions (topic, number)
SELECT changed.topic, 1 FROM unnest(:topics::text[]) AS changed (topic) ORDER BY changed.topic COLLATE "C"
ON CONFLICT (topic) DO UPDATE SET number = revisions.number + 1;

-- name: revisions
SELECT topic, number FROM revisions;
