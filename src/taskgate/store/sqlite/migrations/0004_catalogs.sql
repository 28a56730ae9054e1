-- The last known lists of each server, shown after a start until the server itself has answered.
CREATE TABLE catalogs (
    server      TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    listed_ms   INTEGER NOT NULL,
    body        BLOB NOT NULL
);
