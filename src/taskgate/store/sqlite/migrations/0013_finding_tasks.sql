-- The fields by which tasks are searched, as columns and not only in the document: reading a small column is far cheaper than
-- parsing a record.
ALTER TABLE tasks ADD COLUMN principal TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN scope TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN wire_name TEXT NOT NULL DEFAULT '';
UPDATE tasks SET
    principal = coalesce(json_extract(CAST(doc AS TEXT), '$.principal'), ''),
    scope = coalesce(json_extract(CAST(doc AS TEXT), '$.scope'), ''),
    wire_name = coalesce(json_extract(CAST(doc AS TEXT), '$.wire_name'), '');

-- Unfinished tasks by age, and those that just ended without a result, so that a page about them does not read all others. How many a
-- caller has open is in `open_counts`. With finished_ms in it the index alone counts them.
DROP INDEX tasks_open;
CREATE INDEX tasks_open ON tasks (id, finished_ms) WHERE finished_ms IS NULL;
CREATE INDEX tasks_ended_badly ON tasks (finished_ms)
WHERE state IN ('failed', 'cancelled', 'rejected', 'expired', 'outcome_unknown');
