-- name: account
SELECT value FROM server_accounts WHERE name = :name AND (expires_at IS NULL OR expires_at > extract(epoch FROM now()));

-- name: accounts
SELECT name, value FROM server_accounts WHERE starts_with(name, :prefix) AND (expires_at IS NULL OR expires_at > extract(epoch FROM now()));

-- name: keep_account
INSERT INTO server_accounts (name, value, expires_at) VALUES (:name, :value, extract(epoch FROM now()) + :seconds::float8)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at;

-- name: take_account
DELETE FROM server_accounts WHERE name = :name AND (expires_at IS NULL OR expires_at > extract(epoch FROM now())) RETURNING value;

-- name: replace_account
UPDATE server_accounts SET value = :value WHERE name = :name RETURNING name;

-- name: drop_old_accounts
DELETE FROM server_accounts WHERE expires_at <= extract(epoch FROM now());

-- name: claim_account
INSERT INTO account_claims (name, owner, until) VALUES (:name, :owner, now() + make_interval(secs => :seconds))
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
WHERE account_claims.owner = excluded.owner OR account_claims.until < now()
RETURNING name;

-- name: release_account
DELETE FROM account_claims WHERE name = :name AND owner = :owner;
