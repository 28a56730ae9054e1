-- When a question was answered, for the timeline of its task.
ALTER TABLE questions ADD COLUMN answered_ms bigint;
