-- A task whose result is no longer kept is shown as expired for a while before it is deleted.
ALTER TABLE tasks ADD COLUMN forget_at_ms BIGINT;
DROP INDEX tasks_to_forget;
CREATE INDEX tasks_to_expire ON tasks (keep_until_ms) WHERE keep_until_ms IS NOT NULL AND forget_at_ms IS NULL;
CREATE INDEX tasks_to_forget ON tasks (forget_at_ms) WHERE forget_at_ms IS NOT NULL;
