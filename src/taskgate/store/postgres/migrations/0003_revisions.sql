-- The revision of each kind of record that gateways cache: a copy that was read at the current revision is current.
CREATE TABLE revisions (
    topic  text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL
);

-- Servers that callers added while a gateway ran.
CREATE TABLE dynamic_servers (
    name      text PRIMARY KEY,
    tenant    text NOT NULL DEFAULT '',
    principal text NOT NULL DEFAULT '',
    scope     text NOT NULL,
    body      bytea NOT NULL
);
