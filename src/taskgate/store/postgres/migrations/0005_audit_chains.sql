-- The audit chain of each gateway and start. `cut`: the signed record of the row up to which retention deleted it; `named`: the
-- last row that the beginning of a later chain has named.
CREATE TABLE audit_chains (
    chain    text COLLATE "C" PRIMARY KEY,
    began_ms bigint NOT NULL,
    named    bigint NOT NULL DEFAULT 0,
    cut      bytea
);
INSERT INTO audit_chains (chain, began_ms) SELECT DISTINCT chain, 0 FROM audit;
