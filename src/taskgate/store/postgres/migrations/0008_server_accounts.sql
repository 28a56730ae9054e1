-- Accounts at servers that require OAuth, encrypted by the gateway that writes them, and the state of logins in progress.
CREATE TABLE server_accounts (
    name          text PRIMARY KEY,
    value         bytea NOT NULL,
    expires_at    double precision
);

-- The gateway that is renewing an account: one at a time, until it has finished or its claim expires.
CREATE TABLE account_claims (
    name        text PRIMARY KEY,
    owner       text NOT NULL,
    until       timestamptz NOT NULL
);
