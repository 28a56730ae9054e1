-- What is known about people and their credentials beyond the configuration: sessions of the console, revoked tokens, the roles
-- with which an issuer's subject was last seen. `kind` names which; the body is opaque to the store.
CREATE TABLE identity_records (
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    principal  TEXT NOT NULL,
    expires_ms INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX identity_records_of_principal ON identity_records (principal);
CREATE INDEX identity_records_by_end ON identity_records (expires_ms);
