"""Limits of the configuration, as the store needs them."""

from __future__ import annotations

from taskgate.core.governance.held_call import PendingLimits
from taskgate.core.settings.limits import Limits


def pending_limits(limits: Limits) -> PendingLimits:
    """Return the limits on open approvals."""
    return PendingLimits(
        limits.pending_approvals_per_caller, limits.anonymous_pending_approvals, limits.pending_approvals_per_tenant
    )
