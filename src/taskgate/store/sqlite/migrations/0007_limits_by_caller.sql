-- Limits are kept by principal or address; the names of conversations, by which lists and events are kept, can be chosen freely
-- by callers.
ALTER TABLE tasks ADD COLUMN limited_as TEXT NOT NULL DEFAULT '';
UPDATE tasks SET limited_as = caller;
DROP INDEX tasks_open;
CREATE INDEX tasks_open ON tasks (limited_as, finished_ms) WHERE finished_ms IS NULL;
