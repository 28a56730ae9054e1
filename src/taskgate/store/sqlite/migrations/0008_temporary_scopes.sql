-- Scopes that were handed over at run time and end by themselves.
CREATE TABLE temporary_scopes (
    name       TEXT PRIMARY KEY,
    expires_ms INTEGER NOT NULL,
    body       BLOB NOT NULL
);
