"""Approvals: who may decide, the transition for each event, the final recheck before sending, and grants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskgate.core.governance.approval import (
    Approval,
    ApprovalEvent,
    Binding,
    CallDispatched,
    Changed,
    DecisionRefused,
    Drifted,
    Refusal,
    State,
    TimePassed,
    Verdict,
    Voted,
    Withdrawn,
    apply,
    approvals_that_count,
    as_of,
    may_decide,
    open_approval,
)
from taskgate.core.governance.approver import APPROVER_ROLE, Approver
from taskgate.core.governance.decision import Denied, Forward, Gate, NeedsApproval
from taskgate.core.governance.grants import GrantProblem, GrantRefused, covering, covers, grant_from, revoke
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.recheck import CallAtDispatch, Cleared, Stopped, recheck
from taskgate.core.governance.workflow import OnTimeout, Workflow
from taskgate.core.identity.roles import OWNER_ROLES, Permission

WORKFLOW = Workflow("ops", timeout_ms=1_000, decision_valid_ms=5_000)
TWO = Workflow("ops", timeout_ms=1_000, approvals_needed=2)
ANN = Approver("ann", frozenset({"approver"}))
BOB = Approver("bob", frozenset({"approver", "finance"}))
OPERATOR = Approver("operator", OWNER_ROLES)
AGENT = Approver("agent", frozenset({"approver"}))
UNAUTHORIZED = Approver("eve")
BINDING = Binding("agent", "files", "delete_file", "sha256:a", "sha256:d", "r1", 0, scope="default")
PEOPLE = {who.id: who for who in (ANN, BOB, OPERATOR, AGENT)}


def opened(workflow: Workflow = WORKFLOW) -> Approval:
    return open_approval("ap_1", workflow, "rules[1] delete_*", BINDING, 1_000)


def yes(who: Approver, at: int = 1_100) -> Voted:
    return Voted(who, Verdict.APPROVE, at, "fine", "inbox")


def no(who: Approver, at: int = 1_100) -> Voted:
    return Voted(who, Verdict.DENY, at, "not today")


def after(approval: Approval, *happenings: ApprovalEvent, workflow: Workflow = WORKFLOW) -> Approval:
    for happening in happenings:
        approval = apply(approval, workflow, happening).approval
    return approval


@pytest.mark.parametrize(
    ("limit_key", "counted_as"), [("", "agent/conversation-1"), ("anonymous 192.0.2.1", "anonymous 192.0.2.1")]
)
def test_open_approvals_are_counted_by_the_key_of_limits_or_else_by_caller(limit_key: str, counted_as: str) -> None:
    request = ApprovalRequest(
        id="ap_1",
        workflow=WORKFLOW,
        rule="rules[0]",
        binding=BINDING,
        caller="agent/conversation-1",
        wire_name="files__delete_file",
        arguments=b"{}",
        limit_key=limit_key,
    )
    assert request.counted_as == counted_as


def test_an_approval_opens_with_the_earlier_deadline() -> None:
    assert opened().binding.expires_at_ms == 2_000
    assert (
        open_approval("x", WORKFLOW, "r", replace(BINDING, expires_at_ms=1_500), 1_000).binding.expires_at_ms == 1_500
    )
    assert (
        open_approval("x", WORKFLOW, "r", replace(BINDING, expires_at_ms=9_500), 1_000).binding.expires_at_ms == 2_000
    )


def test_one_approval_is_recorded_with_approver_time_and_reason() -> None:
    outcome = apply(opened(), WORKFLOW, yes(ANN))
    assert isinstance(outcome, Changed)
    assert outcome.ended
    done = outcome.approval
    assert (done.state, done.decided_at_ms, done.reason, done.valid_until_ms) == (State.APPROVED, 1_100, "fine", 6_100)
    assert (done.votes[0].approver, done.votes[0].channel, done.error_type) == ("ann", "inbox", "")


def test_a_denial_ends_an_approval_with_its_reason() -> None:
    done = after(opened(), no(ANN))
    assert (done.state, done.reason, done.error_type) == (State.DENIED, "not today", "approval_rejected")


def test_two_of_many_needs_two_different_people() -> None:
    first = apply(opened(TWO), TWO, yes(ANN))
    assert first == Changed(replace(opened(TWO), votes=first.approval.votes), ended=False)
    again = apply(first.approval, TWO, yes(ANN))
    assert again == DecisionRefused(Refusal.ALREADY_VOTED, first.approval)
    assert after(first.approval, yes(BOB), workflow=TWO).state is State.APPROVED


def test_one_denial_overrides_an_approval_even_of_the_same_person() -> None:
    assert after(opened(TWO), yes(ANN), no(BOB), workflow=TWO).state is State.DENIED
    assert after(opened(TWO), yes(ANN), no(ANN), workflow=TWO).state is State.DENIED


@pytest.mark.parametrize(
    ("workflow", "who", "refusal"),
    [
        (WORKFLOW, ANN, None),
        (WORKFLOW, OPERATOR, None),
        (WORKFLOW, UNAUTHORIZED, Refusal.NOT_AN_APPROVER),
        (WORKFLOW, AGENT, Refusal.OWN_CALL),
        (replace(WORKFLOW, self_approval=True), AGENT, None),
        (replace(WORKFLOW, self_approval=True), Approver("agent"), Refusal.NOT_AN_APPROVER),
        (replace(WORKFLOW, approvers=("bob",)), ANN, Refusal.NOT_AN_APPROVER),
        (replace(WORKFLOW, approvers=("bob",)), BOB, None),
        (replace(WORKFLOW, approvers=("b*",)), BOB, None),
        (replace(WORKFLOW, approvers=("bob",)), OPERATOR, None),
        (replace(WORKFLOW, approvers=("role:finance",)), BOB, None),
        (replace(WORKFLOW, approvers=("role:finance",)), ANN, Refusal.NOT_AN_APPROVER),
    ],
)
def test_only_permitted_approvers_may_decide(workflow: Workflow, who: Approver, refusal: Refusal | None) -> None:
    assert may_decide(workflow, BINDING, who) is refusal
    outcome = apply(opened(), workflow, yes(who))
    assert (outcome.why if isinstance(outcome, DecisionRefused) else None) is refusal


def test_the_operator_may_not_approve_the_operators_own_call() -> None:
    assert may_decide(WORKFLOW, replace(BINDING, principal="operator"), OPERATOR) is Refusal.OWN_CALL


def test_an_unanswered_approval_is_denied() -> None:
    outcome = apply(opened(), WORKFLOW, TimePassed(2_000))
    assert isinstance(outcome, Changed)
    assert outcome.ended
    assert (outcome.approval.state, outcome.approval.error_type) == (State.EXPIRED, "approval_expired")
    assert apply(opened(), WORKFLOW, TimePassed(1_999)) == DecisionRefused(Refusal.NOT_DUE, opened())


def test_a_timeout_approves_only_if_the_workflow_allows_it() -> None:
    unsafe = replace(WORKFLOW, on_timeout=OnTimeout.APPROVE)
    done = after(opened(), TimePassed(2_500), workflow=unsafe)
    assert (done.state, done.decided_at_ms, done.votes) == (State.APPROVED, 2_000, ())
    assert as_of(opened(), unsafe, 7_000).state is State.EXPIRED


def test_a_late_vote_is_refused_and_leaves_the_expiry_behind() -> None:
    outcome = apply(opened(), WORKFLOW, yes(ANN, at=2_000))
    assert isinstance(outcome, DecisionRefused)
    assert (outcome.why, outcome.approval.state) == (Refusal.EXPIRED, State.EXPIRED)
    unauthorized = apply(opened(), WORKFLOW, yes(UNAUTHORIZED, at=2_000))
    assert isinstance(unauthorized, DecisionRefused)
    assert unauthorized.why is Refusal.NOT_AN_APPROVER


def test_an_unused_decision_expires() -> None:
    approved = after(opened(), yes(ANN))
    outcome = apply(approved, WORKFLOW, CallDispatched(6_100))
    assert isinstance(outcome, DecisionRefused)
    assert (outcome.why, outcome.approval.state) == (Refusal.EXPIRED, State.EXPIRED)


def test_an_approval_is_used_by_one_dispatch() -> None:
    approved = after(opened(), yes(ANN))
    used = apply(approved, WORKFLOW, CallDispatched(1_200))
    assert isinstance(used, Changed)
    assert (used.approval.state, used.ended) == (State.USED, False)
    assert apply(used.approval, WORKFLOW, CallDispatched(1_201)) == DecisionRefused(Refusal.NOT_APPROVED, used.approval)
    assert apply(opened(), WORKFLOW, CallDispatched(1_200)) == DecisionRefused(Refusal.NOT_APPROVED, opened())


@pytest.mark.parametrize("happening", [Withdrawn(1_200), Drifted(1_200, "request_drift", "the definition changed")])
def test_a_cancel_or_a_drift_ends_what_is_open_or_approved_and_nothing_else(happening: ApprovalEvent) -> None:
    for before, ended in ((opened(), True), (after(opened(), yes(ANN)), False)):
        outcome = apply(before, WORKFLOW, happening)
        assert isinstance(outcome, Changed)
        assert outcome.ended is ended
        assert outcome.approval.state in (State.CANCELLED, State.INVALID)
        assert outcome.approval.error_type in ("approval_rejected", "request_drift")
    denied = after(opened(), no(ANN))
    assert apply(denied, WORKFLOW, happening) == DecisionRefused(Refusal.ALREADY_DECIDED, denied)


def test_a_decided_approval_refuses_every_further_vote() -> None:
    done = after(opened(), yes(ANN))
    assert apply(done, WORKFLOW, no(BOB)) == DecisionRefused(Refusal.ALREADY_DECIDED, done)


def test_a_very_long_reason_is_cut() -> None:
    assert len(after(opened(), Voted(ANN, Verdict.DENY, 1_100, "x" * 10_000)).reason) == 2_000


times = st.integers(1_000, 8_000)
any_person = st.sampled_from([ANN, BOB, OPERATOR, AGENT, UNAUTHORIZED])
happenings = st.one_of(
    st.builds(Voted, any_person, st.sampled_from(list(Verdict)), times, st.just("why")),
    st.builds(TimePassed, times),
    st.builds(Withdrawn, times),
    st.builds(Drifted, times, st.just("policy_drift"), st.just("x")),
    st.builds(CallDispatched, times),
)
LEGAL = {
    State.OPEN: set(State) - {State.USED},
    State.APPROVED: {State.APPROVED, State.USED, State.EXPIRED, State.CANCELLED, State.INVALID},
}


@given(st.lists(happenings, max_size=200), st.sampled_from([WORKFLOW, TWO]))
def test_any_order_of_events_has_one_outcome(events: list[ApprovalEvent], workflow: Workflow) -> None:
    current = opened(workflow)
    winners = dispatches = 0
    for happening in events:
        before = current
        outcome = apply(current, workflow, happening)
        current = outcome.approval
        assert current.state in LEGAL.get(before.state, {before.state})
        winners += before.state is State.OPEN and current.state is not State.OPEN
        dispatches += current.state is State.USED and before.state is not State.USED
        if isinstance(outcome, Changed):
            assert outcome.ended == (before.state is State.OPEN and current.state is not State.OPEN)
    assert winners <= 1
    assert dispatches <= 1
    approved_by = {vote.approver for vote in current.votes if vote.verdict is Verdict.APPROVE}
    if current.state is State.USED:
        assert len(approved_by) >= workflow.approvals_needed
        assert not any(vote.verdict is Verdict.DENY for vote in current.votes)
    assert not approved_by & {"agent", "eve"}


APPROVED = after(opened(), yes(ANN))


def present(**changes: object) -> CallAtDispatch:
    made = CallAtDispatch(
        principal="agent",
        server="files",
        tool="delete_file",
        arguments_digest="sha256:a",
        definition_digest="sha256:d",
        policy_revision="r1",
        decision=NeedsApproval("ops", "rules[1] delete_*"),
        workflow=WORKFLOW,
        approvers=PEOPLE,
        now_ms=1_200,
    )
    return replace(made, **changes)


def test_an_unchanged_state_permits_the_call() -> None:
    assert recheck(APPROVED, present()) == Cleared()


def test_a_reloaded_policy_with_the_same_or_no_approvers_permits_the_call() -> None:
    assert recheck(APPROVED, present(policy_revision="r2")) == Cleared()
    assert recheck(APPROVED, present(policy_revision="r2", decision=Forward("defaults"))) == Cleared()


@pytest.mark.parametrize(
    ("changes", "error_type", "words"),
    [
        ({"principal": "other"}, "request_drift", "caller"),
        ({"server": "other"}, "request_drift", "server"),
        ({"tool": "other"}, "request_drift", "tool"),
        ({"arguments_digest": "sha256:b"}, "request_drift", "arguments"),
        ({"definition_digest": "sha256:e"}, "request_drift", "definition"),
        ({"decision": Denied(Gate.RULES, "x", "policy_denied")}, "policy_drift", "no longer allows"),
        ({"decision": NeedsApproval("money", "r")}, "policy_drift", "other approvers"),
        ({"workflow": None}, "policy_drift", "removed"),
        ({"workflow": TWO}, "policy_drift", "more approvals"),
        ({"approvers": {}}, "policy_drift", "may no longer"),
        ({"approvers": {"ann": Approver("ann")}}, "policy_drift", "may no longer"),
        ({"now_ms": 9_999}, "approval_expired", "expired"),
    ],
)
def test_any_change_stops_the_call_with_its_reason(changes: dict[str, object], error_type: str, words: str) -> None:
    stopped = recheck(APPROVED, present(**changes))
    assert isinstance(stopped, Stopped)
    assert stopped.error_type == error_type
    assert words in stopped.reason


@pytest.mark.parametrize(
    ("approval", "error_type"),
    [
        (opened(), "approval_rejected"),
        (after(opened(), no(ANN)), "approval_rejected"),
        (after(opened(), Withdrawn(1_100)), "approval_rejected"),
        (after(opened(), Drifted(1_100, "request_drift", "x")), "request_drift"),
        (after(APPROVED, CallDispatched(1_150)), "approval_rejected"),
    ],
)
def test_what_is_not_approved_is_never_sent(approval: Approval, error_type: str) -> None:
    stopped = recheck(approval, present())
    assert isinstance(stopped, Stopped)
    assert stopped.error_type == error_type


def test_approval_by_timeout_is_valid_only_while_the_workflow_allows_it() -> None:
    unsafe = replace(WORKFLOW, on_timeout=OnTimeout.APPROVE)
    silent = as_of(opened(), unsafe, 2_100)
    assert recheck(silent, present(workflow=unsafe, now_ms=2_100)) == Cleared()
    assert isinstance(recheck(silent, present(now_ms=2_100)), Stopped)


def test_a_grant_covers_the_tool_for_its_scope_until_it_ends() -> None:
    grant = grant_from(APPROVED, "gr_1", 1_200, for_ms=1_000)
    assert grant.granted_by == ("ann",)
    assert covers(grant, WORKFLOW, replace(BINDING, arguments_digest="sha256:zzz"), PEOPLE, 1_300)
    assert not covers(grant, WORKFLOW, BINDING, PEOPLE, 2_200)
    assert not covers(grant, WORKFLOW, BINDING, PEOPLE, 1_100)
    assert covering([grant], WORKFLOW, BINDING, PEOPLE, 1_300) is grant
    assert covering([], WORKFLOW, BINDING, PEOPLE, 1_300) is None


@pytest.mark.parametrize(
    "wanted",
    [
        replace(BINDING, principal="other"),
        replace(BINDING, server="other"),
        replace(BINDING, tool="other"),
        replace(BINDING, scope="other"),
        replace(BINDING, definition_digest="sha256:e"),
        replace(BINDING, arguments_digest="sha256:b"),
    ],
)
def test_an_exact_grant_covers_nothing_else(wanted: Binding) -> None:
    grant = grant_from(APPROVED, "gr_1", 1_200, exact_arguments=True)
    assert covers(grant, WORKFLOW, BINDING, PEOPLE, 1_300)
    assert not covers(grant, WORKFLOW, wanted, PEOPLE, 1_300)


def test_a_grant_for_the_whole_scope_covers_others_but_never_the_granter() -> None:
    grant = grant_from(APPROVED, "gr_1", 1_200, whole_scope=True)
    assert covers(grant, WORKFLOW, replace(BINDING, principal="other"), PEOPLE, 1_300)
    assert not covers(grant, WORKFLOW, replace(BINDING, principal="ann"), PEOPLE, 1_300)


def test_grant_for_one_script_covers_only_calls_of_that_source() -> None:
    bound = replace(APPROVED.binding, script_digest="sha256:one")
    grant = grant_from(replace(APPROVED, binding=bound), "gr_1", 1_200, same_script=True)
    assert covers(grant, WORKFLOW, bound, PEOPLE, 1_300)
    for other in ("", "sha256:other"):
        assert not covers(grant, WORKFLOW, replace(bound, script_digest=other), PEOPLE, 1_300)
    with pytest.raises(GrantRefused):
        grant_from(APPROVED, "gr_1", 1_200, same_script=True)


def test_a_grant_for_the_whole_scope_stays_within_the_tenant() -> None:
    approved = replace(APPROVED, binding=replace(BINDING, principal="acme/agent"))
    grant = grant_from(approved, "gr_1", 1_200, whole_scope=True)
    assert grant.tenant == "acme"
    assert covers(grant, WORKFLOW, replace(BINDING, principal="acme/other"), PEOPLE, 1_300)
    for principal in ("other", "globex/agent", "acmes/agent"):
        assert not covers(grant, WORKFLOW, replace(BINDING, principal=principal), PEOPLE, 1_300)


def test_a_grant_ends_when_revoked_or_when_its_givers_lose_their_role() -> None:
    grant = grant_from(APPROVED, "gr_1", 1_200)
    assert not covers(revoke(grant, "bob", 1_250), WORKFLOW, BINDING, PEOPLE, 1_300)
    assert revoke(revoke(grant, "bob", 1_250), "eve", 1_260).revoked_by == "bob"
    assert not covers(grant, WORKFLOW, BINDING, {}, 1_300)
    assert not covers(grant, TWO, BINDING, PEOPLE, 1_300)
    assert not covers(grant, replace(WORKFLOW, name="money"), BINDING, PEOPLE, 1_300)


def test_no_grant_is_made_without_an_approval_by_a_person() -> None:
    with pytest.raises(GrantRefused) as caught:
        grant_from(opened(), "gr_1", 1_200)
    assert caught.value.problem is GrantProblem.NOT_APPROVED
    with pytest.raises(GrantRefused) as caught:
        grant_from(APPROVED, "gr_1", 1_200, for_ms=2_000, longest_ms=1_000)
    assert caught.value.problem is GrantProblem.TOO_LONG
    unsafe = replace(WORKFLOW, on_timeout=OnTimeout.APPROVE)
    with pytest.raises(GrantRefused) as caught:
        grant_from(as_of(opened(), unsafe, 2_100), "gr_1", 2_100)
    assert caught.value.problem is GrantProblem.BY_TIMEOUT


@pytest.mark.parametrize(
    "who, own, of_another, anonymous",
    [
        (Approver("operator", OWNER_ROLES, logged_in=True), True, True, True),
        (Approver("operator", OWNER_ROLES), False, True, True),
        (Approver("ann", frozenset({"approver"})), False, True, False),
        (Approver("ann", frozenset({"approver"}), logged_in=True), False, True, False),
        (Approver("ann", frozenset({"approver"}), may_call=False), False, True, True),
        (Approver("boss", frozenset({"operator"})), False, True, False),
    ],
)
def test_two_names_of_one_person_are_not_two_people(
    who: Approver, own: bool, of_another: bool, anonymous: bool
) -> None:
    found = [who.is_second_person(requester) for requester in (who.id, "agent", "anonymous")]
    assert found == [own, of_another, anonymous]


def test_what_the_operator_approved_after_logging_in_still_counts_at_dispatch() -> None:
    own = replace(BINDING, principal="operator")
    asked = open_approval("ap_1", WORKFLOW, "rules[0]", own, 0)
    standing = {"operator": OPERATOR}
    for who, channel, counts in (
        (replace(OPERATOR, logged_in=True), "page", 1),
        (OPERATOR, "api", 0),
    ):
        outcome = apply(asked, WORKFLOW, Voted(who, Verdict.APPROVE, 1, "", channel))
        assert isinstance(outcome, Changed) == bool(counts)
        assert approvals_that_count(outcome.approval, WORKFLOW, standing) == counts


def test_only_the_operator_and_those_with_the_role_see_approvals() -> None:
    assert Approver("root", OWNER_ROLES).may(Permission.SEE)
    assert Approver("ann", frozenset({APPROVER_ROLE})).may(Permission.SEE)
    assert not Approver("bob", frozenset({"auditor"})).may(Permission.SEE)
