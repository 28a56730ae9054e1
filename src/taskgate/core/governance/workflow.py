"""Approval workflows: who may approve, how many must approve, and what happens on a timeout."""

from __future__ import annotations

from enum import StrEnum

import msgspec

DEFAULT_WORKFLOW = "default"


class OnTimeout(StrEnum):
    """What happens without a decision. Approval on timeout must be configured as `unsafe_on_timeout: approve`."""

    DENY = "deny"
    APPROVE = "approve"


class Workflow(msgspec.Struct, frozen=True):
    """Who may approve, how many must approve, and within what time. Channels are named here and configured elsewhere."""

    name: str
    timeout_ms: int = 600_000
    approvals_needed: int = 1
    approvers: tuple[str, ...] = ("*",)
    self_approval: bool = False
    on_timeout: OnTimeout = OnTimeout.DENY
    redact_fields: tuple[str, ...] = ()
    channels: tuple[str, ...] = ("inbox",)
    decision_valid_ms: int = 900_000
    max_auth_age_s: int | None = None
    """Maximum age of an approver's login; None: no limit."""
