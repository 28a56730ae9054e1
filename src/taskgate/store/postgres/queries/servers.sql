-- name: keep_server
INSERT INTO dynamic_servers (name, scope, body) VALUES (:name, :scope, :body) ON CONFLICT (name) DO NOTHING;

-- name: forget_server
DELETE FROM dynamic_servers WHERE name = :name;

-- name: kept_servers
SELECT name, scope, body FROM dynamic_servers ORDER BY name;
