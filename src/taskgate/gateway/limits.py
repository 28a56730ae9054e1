"""The limits in force. `assembly` sets them from the configuration."""

from __future__ import annotations

from taskgate.core.limits import Limits as Limits
from taskgate.ports.approval_store import PendingLimits


def pending_limits(limits: Limits) -> PendingLimits:
    """Return the limits on open approvals."""
    return PendingLimits(
        limits.pending_approvals_per_caller, limits.anonymous_pending_approvals, limits.pending_approvals_per_tenant
    )
