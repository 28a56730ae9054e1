-- A question may have been shown to its caller before its call became a task; it keeps the id it was shown under.
ALTER TABLE questions ADD COLUMN shown_as TEXT;
