-- The gateway at which a request without a task is held for approval: it notifies approvers. If it is dead, another gateway does.
ALTER TABLE approvals ADD COLUMN owner text NOT NULL DEFAULT '';
