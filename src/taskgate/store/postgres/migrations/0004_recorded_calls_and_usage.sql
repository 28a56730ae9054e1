-- Calls that were recorded so that changed rules can be tried on them; see `core.governance.rehearse`.
CREATE TABLE recorded_calls (
    number bigserial PRIMARY KEY,
    at_ms  bigint NOT NULL,
    body   bytea NOT NULL
);
CREATE INDEX recorded_calls_by_age ON recorded_calls (at_ms);

-- Usage by day, principal, server and tool.
CREATE TABLE usage (
    day       text NOT NULL,
    principal text NOT NULL,
    server    text NOT NULL,
    tool      text NOT NULL,
    calls     bigint NOT NULL,
    errors    bigint NOT NULL,
    seconds   double precision NOT NULL,
    bytes_in  bigint NOT NULL,
    bytes_out bigint NOT NULL,
    cost      double precision NOT NULL,
    PRIMARY KEY (day, principal, server, tool)
);
