-- name: open_session
INSERT INTO sessions (id, tenant, principal, limited_as, scope, home, seen_ms, body)
VALUES (:id, :tenant, :principal, :limited_as, :scope, :home, :now_ms, :body);

-- name: begin_conversation
INSERT INTO sessions (id, principal, scope, home, seen_ms, body)
VALUES (:id, :principal, :scope, :home, :now_ms, ''::bytea)
ON CONFLICT (id) DO NOTHING;

-- name: sessions_of_caller
SELECT count(*) FROM (SELECT 1 FROM sessions WHERE limited_as = :limited_as AND seen_ms >= :since_ms LIMIT :maximum) AS found;

-- name: sessions_of_tenant
SELECT count(*) FROM (SELECT 1 FROM sessions WHERE tenant = :tenant AND tenant <> '' AND seen_ms >= :since_ms LIMIT :maximum) AS found;

-- name: find_session
SELECT s.id, s.principal, s.scope, s.home, s.moves, s.body, r.internal
FROM sessions s LEFT JOIN replicas r ON r.owner = s.home
WHERE s.id = :id;

-- The home must be dead now: a row lock on its lease would block the renewal, so the lease is read again here.

-- name: adopt_session
UPDATE sessions SET home = :home, moves = moves + 1, seen_ms = :now_ms
WHERE id = :id AND home = :former AND home <> :home
  AND NOT EXISTS (SELECT 1 FROM replicas r WHERE r.owner = :former AND r.seen_ms >= :dead_ms)
RETURNING id, principal, scope, home, moves, body;

-- name: change_session
UPDATE sessions SET body = :body, seen_ms = :now_ms WHERE id = :id AND home = :home;

-- name: end_session
DELETE FROM sessions WHERE id = :id AND home = :home;

-- name: release_session
UPDATE sessions SET home = '', seen_ms = :now_ms WHERE id = :id AND home = :home;

-- name: release_sessions
UPDATE sessions SET home = '', seen_ms = :now_ms WHERE home = :home;

-- name: sessions_seen
UPDATE sessions SET seen_ms = :now_ms WHERE home = :home;

-- name: forget_sessions
DELETE FROM sessions WHERE seen_ms < :before_ms;

-- name: sessions_elsewhere
SELECT id FROM sessions WHERE home <> :home;

-- name: sessions_of_home
SELECT id FROM sessions WHERE home = :home;

-- A question of a task keeps its id when another gateway takes over the task; an answer that the dead gateway did not use stays.

-- name: put_open_question
INSERT INTO open_questions AS q (id, caller, home, expires_ms, body)
VALUES (:id, :caller, :home, :expires_ms, :body)
ON CONFLICT (id) DO UPDATE SET home = :home, caller = :caller, expires_ms = :expires_ms, body = :body, outcome = ''
WHERE q.home = :home
   OR NOT EXISTS (SELECT 1 FROM replicas r WHERE r.owner = q.home AND r.seen_ms >= :dead_ms);

-- name: settle_open_question
UPDATE open_questions SET outcome = :outcome WHERE id = :id AND home = :home AND answer IS NOT NULL;

-- name: withdraw_open_question
DELETE FROM open_questions WHERE id = :id AND home = :home AND answer IS NULL;

-- name: answer_open_question
UPDATE open_questions SET answer = :answer WHERE id = :id AND answer IS NULL AND outcome = '' RETURNING home;

-- name: find_open_question
SELECT id, caller, home, expires_ms, body, answer, outcome FROM open_questions WHERE id = :id;

-- name: open_questions_elsewhere
SELECT id, caller, home, expires_ms, body, answer, outcome FROM open_questions
WHERE home <> :home AND outcome = '' AND answer IS NULL;

-- name: open_questions_answered
SELECT id, caller, home, expires_ms, body, answer, outcome FROM open_questions
WHERE home = :home AND outcome = '' AND answer IS NOT NULL;

-- Questions of running gateways are kept until they expire.

-- name: erase_open_questions
DELETE FROM open_questions WHERE caller = :principal OR (caller COLLATE "C" > :first AND caller COLLATE "C" < :beyond);

-- name: erase_sessions
DELETE FROM sessions s
WHERE s.principal = :principal
  AND NOT EXISTS (SELECT 1 FROM replicas r WHERE r.owner = s.home AND r.seen_ms >= :dead_ms);

-- name: forget_open_questions
DELETE FROM open_questions WHERE expires_ms < :before_ms;
