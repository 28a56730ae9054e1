-- Sums of ended calls that are not added to `usage` and `history_counts` yet; see `store.operations.sums`.
CREATE TABLE call_sums (
    number INTEGER PRIMARY KEY,
    at_ms  INTEGER NOT NULL,
    body   BLOB NOT NULL
);
