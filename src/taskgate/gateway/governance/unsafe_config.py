"""Warn about configuration that makes governance weaker than it looks: at the start, and after each reload."""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.pipeline import EnforcementProfile, Gates
from taskgate.core.governance.workflow import OnTimeout
from taskgate.ports.store import Store
from taskgate.store.operations.audit import RecordAudit
from taskgate.telemetry.logs import log

BANNER = "DEVELOPMENT PROFILE: rules, policies and approvals are not enforced, only logged. Not for production."


def warn_unsafe_config(gates: Gates, audit: Store) -> None:
    if gates.profile is EnforcementProfile.DEVELOPMENT:
        log.warning(BANNER)
        audit.defer(RecordAudit(AuditEntry(0, "profile_development", policy_revision=gates.revision)))
    for workflow in gates.workflows.values():
        if workflow.on_timeout is OnTimeout.APPROVE:
            log.warning("UNSAFE WORKFLOW: unanswered requests are approved", workflow=workflow.name)
            audit.defer(
                RecordAudit(AuditEntry(0, "unsafe_workflow", reason=workflow.name, policy_revision=gates.revision))
            )
