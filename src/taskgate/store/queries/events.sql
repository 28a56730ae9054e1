-- name: next_event_number
INSERT INTO event_streams (caller, last, touched_ms) VALUES (:caller, 1, :now_ms)
ON CONFLICT (caller) DO UPDATE SET last = event_streams.last + 1, touched_ms = excluded.touched_ms
RETURNING last;

-- name: insert_event
INSERT INTO events (caller, number, id, kind, server, at_ms, data)
VALUES (:caller, :number, :id, :kind, :server, :at_ms, :data);

-- name: drop_old_events_of_caller
DELETE FROM events WHERE caller = :caller AND number <= :number;

-- name: events_after
SELECT number, id, caller, kind, server, at_ms, data
FROM events
WHERE caller = :caller AND number > :number AND at_ms > :since_ms
ORDER BY number
LIMIT :limit;

-- name: streams_of_caller
SELECT caller FROM event_streams
WHERE caller = :caller OR (caller > :first AND caller < :beyond) ORDER BY caller;

-- name: find_stream
SELECT last, delivered FROM event_streams WHERE caller = :caller;

-- name: move_cursor
UPDATE event_streams SET delivered = :number, touched_ms = :now_ms WHERE caller = :caller AND delivered < :number;
