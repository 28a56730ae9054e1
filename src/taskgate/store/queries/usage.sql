-- name: record_call
INSERT INTO recorded_calls (at_ms, body) VALUES (:at_ms, :body);

-- name: recorded_calls_after
SELECT number, body FROM recorded_calls WHERE number > :number AND at_ms >= :since_ms ORDER BY number LIMIT :limit;

-- name: last_recorded_call
SELECT coalesce(max(number), 0) FROM recorded_calls;

-- name: insert_sums
INSERT INTO call_sums (at_ms, body) VALUES (:at_ms, :body);

-- name: waiting_sums
SELECT number, at_ms, body FROM call_sums ORDER BY number LIMIT :limit;

-- name: add_usage
INSERT INTO usage (day, principal, server, tool, calls, errors, seconds, bytes_in, bytes_out, cost)
VALUES (:day, :principal, :server, :tool, :calls, :errors, :seconds, :bytes_in, :bytes_out, :cost)
ON CONFLICT (day, principal, server, tool) DO UPDATE SET
    calls = usage.calls + excluded.calls,
    errors = usage.errors + excluded.errors,
    seconds = usage.seconds + excluded.seconds,
    bytes_in = usage.bytes_in + excluded.bytes_in,
    bytes_out = usage.bytes_out + excluded.bytes_out,
    cost = usage.cost + excluded.cost;

-- name: usage_between
SELECT day, principal, server, tool, calls, errors, seconds, bytes_in, bytes_out, cost FROM usage
WHERE day >= :first AND day <= :last ORDER BY day, principal, server, tool LIMIT :limit;
