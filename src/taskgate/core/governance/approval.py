"""The approval of a held call: its value, and how each event changes it.

`apply` is a pure compare-and-set: it takes the stored approval and one event, and returns the next value or a refusal.
A store applies it in a transaction, so of concurrent votes exactly one ends the approval. An unanswered approval is
denied, one denial outweighs any number of approvals, and an approval is used up by one dispatch. See also `recheck` and
`grants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from taskgate.core.globs import Glob
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.script_plan import PlannedScript, ScriptOrigin
from taskgate.core.governance.workflow import OnTimeout, Workflow
from taskgate.core.identity.roles import Permission, groups_in
from taskgate.core.patterns import PatternKind

ROLE_PREFIX = "role:"
GROUP_PREFIX = "group:"
MAX_REASON_LENGTH = 2_000
PAGE_CHANNEL = "page"
"""The channel of a decision made on the gateway's own pages, by a person who logged in there."""
APPROVAL_REJECTED = "approval_rejected"
APPROVAL_EXPIRED = "approval_expired"
CANCELLED = "the call was cancelled"


class Binding(msgspec.Struct, frozen=True):
    """Everything that was approved. If any of it differs at dispatch, that call was not approved."""

    principal: str
    server: str
    tool: str
    arguments_digest: str
    definition_digest: str
    policy_revision: str
    expires_at_ms: int
    kind: PatternKind = PatternKind.TOOL
    scope: str = ""
    script_digest: str = ""
    """Of the source of the script that makes the call; empty for other calls."""


class State(StrEnum):
    """The state of an approval. Only `open` and `approved` can change."""

    OPEN = "open"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    INVALID = "invalid"
    USED = "used"


class Verdict(StrEnum):
    """A vote."""

    APPROVE = "approve"
    DENY = "deny"


class Vote(msgspec.Struct, frozen=True):
    """The recorded vote of one person."""

    approver: str
    verdict: Verdict
    at_ms: int
    reason: str = ""
    channel: str = ""
    counts_for: tuple[str, ...] = ()
    """The workflows for which it counts, if several must approve."""


class Approval(msgspec.Struct, frozen=True):
    """One held call. `decided_at_ms` and `reason` are set once it is no longer `open`; `error_type` is returned to the
    caller.
    """

    id: str
    workflow: str
    rule: str
    binding: Binding
    asked_at_ms: int
    state: State = State.OPEN
    votes: tuple[Vote, ...] = ()
    decided_at_ms: int | None = None
    reason: str = ""
    valid_until_ms: int | None = None
    error_type: str = ""
    unvalidated: str = ""
    """Why the arguments were not validated against the tool's input schema; empty if they were, or if there is no
    schema.
    """
    plan: PlannedScript | None = None
    """What a script would call, if the held call runs one."""
    from_script: ScriptOrigin | None = None
    """The script that made the held call, if one did."""


class Voted(msgspec.Struct, frozen=True):
    """A person approved or denied through a channel."""

    by: Approver
    verdict: Verdict
    at_ms: int
    reason: str = ""
    channel: str = ""


class TimePassed(msgspec.Struct, frozen=True):
    """The time of a sweep, a read or a dispatch."""

    at_ms: int


class Withdrawn(msgspec.Struct, frozen=True):
    """The caller or the operator cancelled the call."""

    at_ms: int
    reason: str = CANCELLED


class Drifted(msgspec.Struct, frozen=True):
    """What was approved is no longer what would be sent. `error_type` is `policy_drift` or `request_drift`."""

    at_ms: int
    error_type: str
    reason: str


class CallDispatched(msgspec.Struct, frozen=True):
    """The approved call is about to be sent."""

    at_ms: int


class Recalled(msgspec.Struct, frozen=True):
    """A person takes their approval back before the call is sent."""

    by: Approver
    at_ms: int


ApprovalEvent: TypeAlias = Voted | TimePassed | Withdrawn | Drifted | CallDispatched | Recalled


class Refusal(StrEnum):
    """Why an event changed nothing."""

    ALREADY_DECIDED = "already_decided"
    ALREADY_VOTED = "already_voted"
    NOT_AN_APPROVER = "not_an_approver"
    OWN_CALL = "own_call"
    LOGIN_TOO_OLD = "login_too_old"
    EXPIRED = "expired"
    NOT_APPROVED = "not_approved"
    NOT_DUE = "not_due"


class Changed(msgspec.Struct, frozen=True):
    """The next value. `ended`: this event ended the state `open`."""

    approval: Approval
    ended: bool


class DecisionRefused(msgspec.Struct, frozen=True):
    """The event was refused. `approval` is the current value, after the effect of time: store it."""

    why: Refusal
    approval: Approval


Outcome: TypeAlias = Changed | DecisionRefused


def open_approval(
    approval_id: str,
    workflow: Workflow,
    rule: str,
    binding: Binding,
    now_ms: int,
    *,
    unvalidated: str = "",
    plan: PlannedScript | None = None,
    from_script: ScriptOrigin | None = None,
) -> Approval:
    """Open an approval; its deadline is the earlier of the workflow's timeout and that of the binding."""
    deadline = now_ms + workflow.timeout_ms
    if binding.expires_at_ms > 0:
        deadline = min(deadline, binding.expires_at_ms)
    bound = replace(binding, expires_at_ms=deadline)
    return Approval(
        id=approval_id,
        workflow=workflow.name,
        rule=rule,
        binding=bound,
        asked_at_ms=now_ms,
        unvalidated=unvalidated,
        plan=plan,
        from_script=from_script,
    )


def apply(approval: Approval, workflow: Workflow, event: ApprovalEvent) -> Outcome:
    """Return the effect of an event on an approval."""
    current = as_of(approval, workflow, event.at_ms)
    out_of_date = current is not approval
    outcome = _apply_now(current, workflow, event)
    if isinstance(outcome, DecisionRefused) and out_of_date:
        if isinstance(event, TimePassed):
            return Changed(current, ended=True)
        late = current.state is State.EXPIRED and outcome.why is not Refusal.NOT_AN_APPROVER
        why = Refusal.EXPIRED if late else outcome.why
        return DecisionRefused(why, current)
    return outcome


def as_of(approval: Approval, workflow: Workflow, now_ms: int) -> Approval:
    """Return the approval at this time; the same object if time changed nothing."""
    if approval.state is State.OPEN and now_ms >= approval.binding.expires_at_ms:
        approval = _by_timeout(approval, workflow)
    if approval.state is State.APPROVED and approval.valid_until_ms is not None and now_ms >= approval.valid_until_ms:
        return replace(
            approval, state=State.EXPIRED, error_type=APPROVAL_EXPIRED, reason="the approval was not used in time"
        )
    return approval


def may_decide(workflow: Workflow, binding: Binding, approver: Approver) -> Refusal | None:
    """Return why a person may not decide on a call, or None. The only definition of that, for every transport and
    channel.
    """
    if not workflow.self_approval and not approver.is_second_person(binding.principal):
        return Refusal.OWN_CALL
    if not approver.may(Permission.DECIDE):
        return Refusal.NOT_AN_APPROVER
    if approver.may(Permission.ACT) or any(_names(pattern, approver) for pattern in workflow.approvers):
        return None
    return Refusal.NOT_AN_APPROVER


def still_approved(approval: Approval, workflow: Workflow, standing: Mapping[str, Approver]) -> bool:
    """Whether enough people who may decide *now* have approved, for each workflow that must approve."""
    return all(approvals_that_count(approval, part, standing) >= part.approvals_needed for part in workflow.each)


def approvals_that_count(approval: Approval, workflow: Workflow, standing: Mapping[str, Approver]) -> int:
    """Return how many different people who may decide *now* have approved. `workflow` has no parts."""
    yes = {vote.approver: vote.channel for vote in approval.votes if vote.verdict is Verdict.APPROVE}
    known = (
        replace(standing[person], logged_in=channel == PAGE_CHANNEL)
        for person, channel in yes.items()
        if person in standing
    )
    return count_people(workflow, approval.binding, known)


def count_people(workflow: Workflow, binding: Binding, approvers: Iterable[Approver]) -> int:
    """Return how many different people among these may decide on a call; a person with two names counts once."""
    return len({approver.person for approver in approvers if may_decide(workflow, binding, approver) is None})


def _apply_now(approval: Approval, workflow: Workflow, event: ApprovalEvent) -> Outcome:
    match event:
        case Voted():
            return _vote(approval, workflow, event)
        case TimePassed():
            return DecisionRefused(Refusal.NOT_DUE, approval)
        case Withdrawn():
            return _close(approval, State.CANCELLED, event.at_ms, event.reason, APPROVAL_REJECTED)
        case Drifted():
            return _close(approval, State.INVALID, event.at_ms, event.reason, event.error_type)
        case CallDispatched():
            if approval.state is not State.APPROVED:
                return DecisionRefused(Refusal.NOT_APPROVED, approval)
            return Changed(replace(approval, state=State.USED), ended=False)
        case Recalled():
            return _recall(approval, event)
        case _:
            assert_never(event)


def _recall(approval: Approval, recalled: Recalled) -> Outcome:
    """Open an approval again, without the vote of this person. Its deadline remains."""
    is_unused = approval.state is State.APPROVED
    if not is_unused:
        return DecisionRefused(Refusal.ALREADY_DECIDED, approval)
    kept = tuple(vote for vote in approval.votes if not recalled.by.is_known_as(vote.approver))
    if len(kept) == len(approval.votes):
        return DecisionRefused(Refusal.NOT_AN_APPROVER, approval)
    if recalled.at_ms >= approval.binding.expires_at_ms:
        # Without time left to decide again it would end at once, in some workflows as approved.
        return DecisionRefused(Refusal.EXPIRED, approval)
    reopened = replace(approval, state=State.OPEN, votes=kept, decided_at_ms=None, reason="", valid_until_ms=None)
    return Changed(reopened, ended=False)


def _by_timeout(approval: Approval, workflow: Workflow) -> Approval:
    at = approval.binding.expires_at_ms
    if workflow.on_timeout is OnTimeout.APPROVE:
        reason = "no decision in time, and this workflow approves on timeout"
        return _ended(approval, State.APPROVED, at, reason, valid_until_ms=at + workflow.decision_valid_ms)
    return _ended(approval, State.EXPIRED, at, "no decision in time", error_type=APPROVAL_EXPIRED)


def _vote(approval: Approval, workflow: Workflow, voted: Voted) -> Outcome:
    # Check the permission first: an unauthorized person must not learn how an approval ended.
    refusal = may_decide(workflow, approval.binding, voted.by)
    if refusal is not None:
        return DecisionRefused(refusal, approval)
    if approval.state is not State.OPEN:
        return DecisionRefused(Refusal.ALREADY_DECIDED, approval)
    if voted.verdict is Verdict.APPROVE and any(voted.by.is_known_as(vote.approver) for vote in approval.votes):
        return DecisionRefused(Refusal.ALREADY_VOTED, approval)
    if voted.verdict is Verdict.APPROVE and not _is_fresh(workflow, voted):
        return DecisionRefused(Refusal.LOGIN_TOO_OLD, approval)
    reason = voted.reason[:MAX_REASON_LENGTH]
    vote = Vote(
        approver=voted.by.id,
        verdict=voted.verdict,
        at_ms=voted.at_ms,
        reason=reason,
        channel=voted.channel,
        counts_for=tuple(part.name for part in workflow.parts if may_decide(part, approval.binding, voted.by) is None),
    )
    noted = replace(approval, votes=(*approval.votes, vote))
    if voted.verdict is Verdict.DENY:
        denied = _ended(noted, State.DENIED, voted.at_ms, reason, error_type=APPROVAL_REJECTED)
        return Changed(denied, ended=True)
    if not _is_enough(noted.votes, workflow):
        return Changed(noted, ended=False)
    until = voted.at_ms + workflow.decision_valid_ms
    return Changed(_ended(noted, State.APPROVED, voted.at_ms, reason, valid_until_ms=until), ended=True)


def _is_enough(votes: Iterable[Vote], workflow: Workflow) -> bool:
    yes = [vote for vote in votes if vote.verdict is Verdict.APPROVE]
    if not workflow.parts:
        return len(yes) >= workflow.approvals_needed
    counted = [sum(part.name in vote.counts_for for vote in yes) for part in workflow.parts]
    return all(count >= part.approvals_needed for count, part in zip(counted, workflow.parts, strict=True))


def _is_fresh(workflow: Workflow, voted: Voted) -> bool:
    return workflow.max_auth_age_s is None or voted.by.logged_in_since(workflow.max_auth_age_s, voted.at_ms)


def _close(approval: Approval, state: State, at_ms: int, reason: str, error_type: str) -> Outcome:
    if approval.state not in (State.OPEN, State.APPROVED):
        return DecisionRefused(Refusal.ALREADY_DECIDED, approval)
    closed = _ended(approval, state, at_ms, reason, error_type=error_type)
    return Changed(closed, ended=approval.state is State.OPEN)


def _ended(
    approval: Approval,
    state: State,
    at_ms: int,
    reason: str,
    *,
    valid_until_ms: int | None = None,
    error_type: str = "",
) -> Approval:
    return replace(
        approval,
        state=state,
        decided_at_ms=at_ms,
        reason=reason,
        valid_until_ms=valid_until_ms,
        error_type=error_type,
    )


def _names(pattern: str, approver: Approver) -> bool:
    if pattern.startswith(ROLE_PREFIX):
        glob = Glob.compile(pattern[len(ROLE_PREFIX) :])
        return any(glob.matches(role) for role in approver.roles)
    if pattern.startswith(GROUP_PREFIX):
        glob = Glob.compile(pattern[len(GROUP_PREFIX) :])
        return any(glob.matches(group) for group in groups_in(approver.roles))
    return Glob.compile(pattern).matches(approver.id)
