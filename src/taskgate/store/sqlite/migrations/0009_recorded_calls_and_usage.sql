-- Calls that were recorded so that changed rules can be tried on them; see `core.governance.rehearse`.
CREATE TABLE recorded_calls (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms  INTEGER NOT NULL,
    body   BLOB NOT NULL
);
CREATE INDEX recorded_calls_by_age ON recorded_calls (at_ms);

-- Usage by day, principal, server and tool.
CREATE TABLE usage (
    day       TEXT NOT NULL,
    principal TEXT NOT NULL,
    server    TEXT NOT NULL,
    tool      TEXT NOT NULL,
    calls     INTEGER NOT NULL,
    errors    INTEGER NOT NULL,
    seconds   REAL NOT NULL,
    bytes_in  INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL,
    cost      REAL NOT NULL,
    PRIMARY KEY (day, principal, server, tool)
) WITHOUT ROWID;
