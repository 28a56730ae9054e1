-- Under which name the sessions of a caller are limited, wherever they are opened. Rows of gateways that do not write it count
-- towards no limit. A live home renews `seen_ms`, so sessions without a home soon no longer count.
ALTER TABLE sessions ADD COLUMN limited_as text NOT NULL DEFAULT '';
CREATE INDEX sessions_limited ON sessions (limited_as, seen_ms);
CREATE INDEX sessions_of_tenant ON sessions (tenant, seen_ms) WHERE tenant <> '';
