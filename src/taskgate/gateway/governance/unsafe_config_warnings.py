"""Whatever makes governance weaker than it looks is said aloud at the start and after a reload, and recorded."""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.core.governance.approval import OnTimeout
from taskgate.core.governance.pipeline import Gates, Profile
from taskgate.ports.audit_log import AuditLog
from taskgate.telemetry.logs import log

BANNER = "DEVELOPMENT PROFILE: rules, policies and approvals are not enforced, only logged. Not for production."


def warn_of_loose_ends(gates: Gates, audit: AuditLog) -> None:
    if gates.profile is Profile.DEVELOPMENT:
        log.warning(BANNER)
        audit.record(AuditEntry(0, "profile_development", policy_revision=gates.revision))
    for workflow in gates.workflows.values():
        if workflow.on_timeout is OnTimeout.APPROVE:
            log.warning("UNSAFE WORKFLOW: silence approves calls", workflow=workflow.name)
            audit.record(AuditEntry(0, "unsafe_workflow", reason=workflow.name, policy_revision=gates.revision))
