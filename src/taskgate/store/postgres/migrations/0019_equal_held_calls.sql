-- A held call is compared with the pending calls of its caller to the same tool, not with all calls that wait for approval.
CREATE INDEX approvals_with_task ON approvals (caller, server, tool, asked_ms, id) WHERE state = 'open' AND task_id IS NOT NULL;
CREATE INDEX approvals_without_task ON approvals (principal, server, tool, state) WHERE task_id IS NULL;
