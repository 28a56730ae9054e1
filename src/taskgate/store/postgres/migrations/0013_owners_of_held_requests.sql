-- The gateway at which a request without a task is held for approval: it tells people. When it is dead, another takes that over.
ALTER TABLE approvals ADD COLUMN owner text NOT NULL DEFAULT '';
