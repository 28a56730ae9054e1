-- name: keep_scope
INSERT INTO temporary_scopes (name, expires_ms, body) VALUES (:name, :expires_ms, :body);

-- name: forget_scope
DELETE FROM temporary_scopes WHERE name = :name;

-- name: kept_scopes
SELECT name, expires_ms, body FROM temporary_scopes ORDER BY name;
