-- Unfinished tasks of callers without an identity, whose conversations are limited one by one. Tasks of other callers are not in it.
CREATE INDEX tasks_open_of_anonymous ON tasks (caller, limited_as) WHERE finished_ms IS NULL AND principal = 'anonymous';
