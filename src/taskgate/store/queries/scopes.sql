-- name: keep_scope
INSERT INTO temporary_scopes (name, expires_ms, body) VALUES (:name, :expires_ms, :body);

-- name: forget_scope
DELETE FROM temporary_scopes WHERE name = :name;

-- name: kept_scopes
SELECT name, expires_ms, body FROM temporary_scopes ORDER BY name;

-- name: keep_identity_record
INSERT INTO identity_records (kind, name, principal, expires_ms, body)
VALUES (:kind, :name, :principal, :expires_ms, :body)
ON CONFLICT (kind, name) DO UPDATE
SET principal = excluded.principal, expires_ms = excluded.expires_ms, body = excluded.body;

-- name: forget_identity_record
DELETE FROM identity_records WHERE kind = :kind AND name = :name;

-- name: forget_identity_records_of
DELETE FROM identity_records WHERE kind = :kind AND principal = :principal;

-- name: forget_identity_records_of_kind
DELETE FROM identity_records WHERE kind = :kind;

-- name: find_identity_record
SELECT kind, name, principal, expires_ms, body FROM identity_records WHERE kind = :kind AND name = :name;

-- name: identity_records
SELECT kind, name, principal, expires_ms, body FROM identity_records WHERE kind = :kind ORDER BY name;
