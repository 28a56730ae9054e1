-- The fields by which tasks are searched, as columns and not only in the document: reading a small column is far cheaper than
-- parsing a record.
ALTER TABLE tasks ADD COLUMN scope text NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN wire_name text NOT NULL DEFAULT '';
UPDATE tasks SET
    scope = coalesce(convert_from(doc, 'UTF8')::json ->> 'scope', ''),
    wire_name = coalesce(convert_from(doc, 'UTF8')::json ->> 'wire_name', '');

-- For gateways of the previous version, which do not know these columns; for others only the condition is evaluated.
CREATE FUNCTION taskgate_name_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.scope := coalesce(convert_from(NEW.doc, 'UTF8')::json ->> 'scope', '');
    NEW.wire_name := coalesce(convert_from(NEW.doc, 'UTF8')::json ->> 'wire_name', '');
    RETURN NEW;
END $$;
CREATE TRIGGER name_tasks BEFORE INSERT ON tasks FOR EACH ROW WHEN (NEW.wire_name = '') EXECUTE FUNCTION taskgate_name_task();

-- Unfinished tasks by age, and those that just ended without a result, so that a page about them does not read all others. How many a
-- caller has open is in `open_counts`.
DROP INDEX tasks_open;
CREATE INDEX tasks_open ON tasks (id) WHERE finished_ms IS NULL;
CREATE INDEX tasks_ended_badly ON tasks (finished_ms, id)
WHERE state IN ('failed', 'cancelled', 'rejected', 'expired', 'outcome_unknown');
