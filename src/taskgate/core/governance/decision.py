"""The decisions of the gates about a call, and their order of strictness."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TypeAlias, assert_never

import msgspec

from taskgate.core.facts.conditions import Condition, phrase
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
    because: str = ""
    """The conditions of the rule, as a phrase."""


class NeedsApproval(msgspec.Struct, frozen=True):
    """Hold it until the workflow's approvers have approved. `reason` is the operator's note for approvers."""

    workflow: str
    rule: str
    reason: str = ""
    because: str = ""


class NeedsPolicy(msgspec.Struct, frozen=True):
    """Evaluate the policy. `at_least_approve` is the workflow that must approve even if the policy forwards."""

    policy_id: str
    workflow: str | None
    rule: str
    at_least_approve: str | None = None
    reason: str = ""
    because: str = ""


class Denied(msgspec.Struct, frozen=True):
    """Do not send it. `reason` is for the log only; it may name rules."""

    gate: Gate
    reason: str
    error_type: str
    rule: str = ""
    because: str = ""


Settled: TypeAlias = Forward | NeedsApproval | Denied
Determined: TypeAlias = Settled | NeedsPolicy


class Branch(msgspec.Struct, frozen=True):
    """What is decided if these conditions are met."""

    conditions: tuple[Condition, ...]
    decision: Determined


class Residue(msgspec.Struct, frozen=True):
    """What is left of rules whose conditions depend on the call. In each layer the first branch whose conditions are met
    counts, and the last branch has none; of the layers the strictest counts.
    """

    layers: tuple[tuple[Branch, ...], ...]

    @property
    def branches(self) -> tuple[Branch, ...]:
        return tuple(branch for layer in self.layers for branch in layer)

    @property
    def rule(self) -> str:
        return " | ".join(dict.fromkeys(branch.decision.rule for branch in self.branches))

    @property
    def reason(self) -> str:
        return ""


Decision: TypeAlias = Determined | Residue


def strictness(decision: Determined) -> Strictness:
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
    """Return the action of a decision, as the annotation matrix and log messages name it.

    A tool whose remaining rules may hold a call counts as `approve`; one whose remaining rules may only deny, as `forward`.
    """
    match decision:
        case Residue():
            actions = [{action_of(branch.decision) for branch in layer} for layer in decision.layers]
            if {Action.DENY} in actions:
                return Action.DENY
            holds = any(each & {Action.APPROVE, Action.POLICY} for each in actions)
            return Action.APPROVE if holds else Action.FORWARD
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
    if isinstance(decision, Residue):
        return "; and ".join(map(_describe_layer, decision.layers))
    text = _describe(decision)
    return f"{text} because {decision.because}" if decision.because else text


def _describe_layer(layer: tuple[Branch, ...]) -> str:
    parts = [
        f"{_describe(each.decision)} if {phrase(each.conditions)}" if each.conditions else _describe(each.decision)
        for each in layer
    ]
    return ", otherwise ".join(parts)


def _describe(decision: Determined) -> str:
    match decision:
        case Forward(rule, note, reason):
            return f"forward ({rule})" if note is None else f"forward, {note.value}: {reason} ({rule})"
        case NeedsApproval(workflow, rule):
            return f"hold for the approval workflow {workflow} ({rule})"
        case NeedsPolicy(policy_id, _, rule, None):
            return f"evaluate the policy{f' as {policy_id}' if policy_id else ''} ({rule})"
        case NeedsPolicy(_, _, rule, workflow):
            return f"evaluate the policy, and hold at least for the approval workflow {workflow} ({rule})"
        case Denied(gate, reason, _, rule):
            return f"deny at {gate.value}: {reason}{f' ({rule})' if rule else ''}"
        case _:
            assert_never(decision)
