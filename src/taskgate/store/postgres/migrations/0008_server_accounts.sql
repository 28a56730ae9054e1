-- Accounts at servers that want OAuth, encrypted by whoever writes them, and the notes of logins that are under way.
CREATE TABLE server_accounts (
    name          text PRIMARY KEY,
    value         bytea NOT NULL,
    expires_at    double precision
);

-- Who is renewing an account just now: one gateway at a time, until it is done or its time is over.
CREATE TABLE account_claims (
    name        text PRIMARY KEY,
    owner       text NOT NULL,
    until       timestamptz NOT NULL
);
