"""Approval workflows: who may approve, how many must approve, and what happens on a timeout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

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
    parts: tuple[Workflow, ...] = ()
    """The workflows that must all approve, if it consists of several."""

    @property
    def each(self) -> tuple[Workflow, ...]:
        """The workflows whose approvals are counted."""
        return self.parts or (self,)


JOINT: Final = "+"
"""Between the names of workflows that must all approve. No name of a configured one has it."""


def joint_name(names: Iterable[str]) -> str:
    """Return the name of the workflow that consists of these."""
    return JOINT.join(sorted({part for name in names for part in name.split(JOINT)}))


def covers(approved: str, required: str) -> bool:
    """Whether every workflow that is required has approved."""
    return set(required.split(JOINT)) <= set(approved.split(JOINT))


def joined(name: str, parts: Sequence[Workflow]) -> Workflow:
    """Return the workflow in which all of these must approve: the strictest of every setting."""
    ages = [part.max_auth_age_s for part in parts if part.max_auth_age_s is not None]
    approve = all(part.on_timeout is OnTimeout.APPROVE for part in parts)
    return Workflow(
        name=name,
        timeout_ms=min(part.timeout_ms for part in parts),
        approvals_needed=sum(part.approvals_needed for part in parts),
        approvers=tuple(dict.fromkeys(each for part in parts for each in part.approvers)),
        self_approval=all(part.self_approval for part in parts),
        on_timeout=OnTimeout.APPROVE if approve else OnTimeout.DENY,
        redact_fields=tuple(dict.fromkeys(each for part in parts for each in part.redact_fields)),
        channels=tuple(dict.fromkeys(each for part in parts for each in part.channels)),
        decision_valid_ms=min(part.decision_valid_ms for part in parts),
        max_auth_age_s=min(ages, default=None),
        parts=tuple(parts),
    )
