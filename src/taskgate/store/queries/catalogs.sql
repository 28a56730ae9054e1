-- name: keep_catalog
INSERT INTO catalogs (server, fingerprint, listed_ms, body) VALUES (:server, :fingerprint, :listed_ms, :body)
ON CONFLICT (server) DO UPDATE
SET fingerprint = excluded.fingerprint, listed_ms = excluded.listed_ms, body = excluded.body
WHERE catalogs.fingerprint <> excluded.fingerprint OR catalogs.body <> excluded.body;

-- name: confirm_catalog
UPDATE catalogs SET listed_ms = :listed_ms WHERE server = :server AND listed_ms < :listed_ms;

-- name: kept_catalogs
SELECT server, fingerprint, listed_ms, body FROM catalogs ORDER BY server;

-- name: forget_catalog
DELETE FROM catalogs WHERE server = :server;
