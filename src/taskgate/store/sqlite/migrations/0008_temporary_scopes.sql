-- Temporary scopes, which are created at run time and expire.
CREATE TABLE temporary_scopes (
    name       TEXT PRIMARY KEY,
    expires_ms INTEGER NOT NULL,
    body       BLOB NOT NULL
);
