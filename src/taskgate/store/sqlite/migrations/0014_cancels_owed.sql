-- Tasks that have ended and whose server must still be notified of the cancellation: nearly always none. With `tasks_open` it
-- finds what a new owner takes over without reading all others.
CREATE INDEX tasks_cancel_owed ON tasks (id) WHERE needs_owner = 1 AND finished_ms IS NOT NULL;
