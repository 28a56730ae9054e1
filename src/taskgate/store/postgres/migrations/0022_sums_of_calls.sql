-- Sums of ended calls that are not added to `usage` and `history_counts` yet; see `store.operations.sums`.
CREATE TABLE call_sums (
    number bigserial PRIMARY KEY,
    at_ms  bigint NOT NULL,
    body   bytea NOT NULL
);
