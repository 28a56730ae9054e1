-- What is known about people and their credentials beyond the configuration: sessions of the console, revoked tokens, the roles
-- with which an issuer's subject was last seen. `kind` names which; the body is opaque to the store.
CREATE TABLE identity_records (
    kind       text NOT NULL,
    name       text COLLATE "C" NOT NULL,
    principal  text NOT NULL,
    expires_ms bigint NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX identity_records_of_principal ON identity_records (principal);
CREATE INDEX identity_records_by_end ON identity_records (expires_ms);
