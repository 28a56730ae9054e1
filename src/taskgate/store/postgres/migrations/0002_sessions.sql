-- Sessions of stateful callers, so that any gateway can find out which one holds a session (its home), and continue the session
-- of a home that has died. `body` is what the gateway needs to open it again; `moves` counts the changes of home; `seen_ms` is
-- renewed periodically by a live home, so that sessions without a home can be deleted.
CREATE TABLE sessions (
    id        text COLLATE "C" PRIMARY KEY,
    tenant    text NOT NULL DEFAULT '',
    principal text NOT NULL,
    scope     text NOT NULL,
    home      text NOT NULL,
    moves     integer NOT NULL DEFAULT 0,
    seen_ms   bigint NOT NULL,
    body      bytea NOT NULL
);
CREATE INDEX sessions_of_home ON sessions (home);

-- The address at which other gateways reach this one; empty if there is none.
ALTER TABLE replicas ADD COLUMN internal text NOT NULL DEFAULT '';
