"""The decisions of the gates about a call, and their order of strictness."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TypeAlias, assert_never

import msgspec

from taskgate.core.settings.governance import Action


class Gate(StrEnum):
    """The stage that decided."""

    VISIBILITY = "visibility"
    RULES = "rules"
    POLICY = "policy"
    APPROVAL = "approval"


class Strictness(IntEnum):
    """The order of decisions. A later stage may only be stricter."""

    FORWARD = 0
    POLICY = 1
    APPROVE = 2
    DENY = 3


class Note(StrEnum):
    """What the production profile would have done with a call that the development profile forwarded."""

    WOULD_DENY = "WOULD_DENY"
    WOULD_HOLD = "WOULD_HOLD"


class Forward(msgspec.Struct, frozen=True):
    """Send it. `note` is set only in the development profile."""

    rule: str
    note: Note | None = None
    reason: str = ""


class NeedsApproval(msgspec.Struct, frozen=True):
    """Hold it until the workflow's approvers have approved. `reason` is the operator's note for approvers."""

    workflow: str
    rule: str
    reason: str = ""


class NeedsPolicy(msgspec.Struct, frozen=True):
    """Evaluate the policy. `at_least_approve` is the workflow that must approve even if the policy forwards."""

    policy_id: str
    workflow: str | None
    rule: str
    at_least_approve: str | None = None
    reason: str = ""


class Denied(msgspec.Struct, frozen=True):
    """Do not send it. `reason` is for the log only; it may name rules."""

    gate: Gate
    reason: str
    error_type: str
    rule: str = ""


Decision: TypeAlias = Forward | NeedsApproval | NeedsPolicy | Denied
Settled: TypeAlias = Forward | NeedsApproval | Denied


def strictness(decision: Decision) -> Strictness:
    """Return the strictness of a decision."""
    match decision:
        case Forward():
            return Strictness.FORWARD
        case NeedsPolicy(at_least_approve=None):
            return Strictness.POLICY
        case NeedsPolicy() | NeedsApproval():
            return Strictness.APPROVE
        case Denied():
            return Strictness.DENY
        case _:
            assert_never(decision)


def action_of(decision: Decision) -> Action:
    """Return the action of a decision, as the annotation matrix and log messages name it."""
    match decision:
        case Forward():
            return Action.FORWARD
        case NeedsPolicy():
            return Action.POLICY
        case NeedsApproval():
            return Action.APPROVE
        case Denied():
            return Action.DENY
        case _:
            assert_never(decision)


def describe(decision: Decision) -> str:
    """Return the decision in one line, for operators: logs and `taskgate policy test`. Callers never see it."""
    match decision:
        case Forward(rule, note, reason):
            return f"forward ({rule})" if note is None else f"forward, {note.value}: {reason} ({rule})"
        case NeedsApproval(workflow, rule, _):
            return f"hold for the approval workflow {workflow} ({rule})"
        case NeedsPolicy(policy_id, _, rule, None):
            return f"evaluate the policy{f' as {policy_id}' if policy_id else ''} ({rule})"
        case NeedsPolicy(_, _, rule, workflow):
            return f"evaluate the policy, and hold at least for the approval workflow {workflow} ({rule})"
        case Denied(gate, reason, _, rule):
            return f"deny at {gate.value}: {reason}{f' ({rule})' if rule else ''}"
        case _:
            assert_never(decision)
