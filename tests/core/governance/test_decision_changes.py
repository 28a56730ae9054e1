"""A decision changes if its effect does, not if another rule has the same one."""

from __future__ import annotations

import itertools

import pytest

from taskgate.core.facts.conditions import conditions
from taskgate.core.governance.decision import (
    Branch,
    Decision,
    Denied,
    Forward,
    Gate,
    NeedsApproval,
    NeedsPolicy,
    Note,
    Residue,
)
from taskgate.core.governance.decision_changes import SCOPE, ChangedName, DecisionOutcome, ScopeChange, grouped
from taskgate.core.governance.workflow import OnTimeout, Workflow


def _residue(amount: str, rule: str) -> Residue:
    held = Branch(conditions({"argument.amount": amount}), NeedsApproval("ops", rule))
    return Residue(((held, Branch((), Forward("defaults"))),))


EFFECTS: list[list[Decision]] = [
    [Forward("defaults"), Forward("rules[0] *", reason="permitted")],
    [Forward("defaults", Note.WOULD_DENY, "a"), Forward("rules[1] x", Note.WOULD_DENY, "b")],
    [Forward("defaults", Note.WOULD_HOLD, "a")],
    [NeedsApproval("ops", "rules[0] *"), NeedsApproval("ops", "rules[3] x", "reason")],
    [NeedsApproval("money", "rules[0] *")],
    [NeedsPolicy("", None, "rules[0] *"), NeedsPolicy("", None, "rules[1] x", reason="reason")],
    [NeedsPolicy("payments", None, "rules[0] *")],
    [NeedsPolicy("", "ops", "rules[0] *")],
    [NeedsPolicy("", None, "rules[0] *", "ops")],
    [Denied(Gate.RULES, "denied by rule", "policy_denied", "rules[0] *"), Denied(Gate.RULES, "b", "policy_denied")],
    [Denied(Gate.VISIBILITY, "on a deny list", "unknown_tool"), Denied(Gate.VISIBILITY, "b", "unknown_tool")],
    [_residue("> 5", "rules[0] *"), _residue("> 5", "rules[1] x")],
    [_residue("> 6", "rules[0] *")],
]


def test_effect_does_not_depend_on_rule_and_reason() -> None:
    for group in EFFECTS:
        assert len({DecisionOutcome(each).effect for each in group}) == 1
    for one, other in itertools.combinations(EFFECTS, 2):
        assert DecisionOutcome(one[0]).effect != DecisionOutcome(other[0]).effect


HOLD = NeedsApproval("ops", "rules[0] *")
OPS = Workflow("ops")


@pytest.mark.parametrize(
    ("workflow", "note"),
    [
        (Workflow("ops", approvals_needed=2), "approvals_needed 1 -> 2"),
        (Workflow("ops", approvers=("ann", "bob")), "approvers * -> ann, bob"),
        (Workflow("ops", self_approval=True), "self_approval False -> True"),
        (Workflow("ops", on_timeout=OnTimeout.APPROVE), "on_timeout deny -> approve"),
        (Workflow("ops", max_auth_age_s=60), "max_auth_age_s None -> 60"),
    ],
)
def test_other_approvals_of_the_same_workflow_are_a_change(workflow: Workflow, note: str) -> None:
    before, after = DecisionOutcome(HOLD, workflow=OPS), DecisionOutcome(HOLD, workflow=workflow)
    assert before.effect != after.effect
    assert after.text_after(before) == f"{before.text()}; {note}"


def test_how_approvers_are_asked_is_no_change() -> None:
    after = DecisionOutcome(HOLD, workflow=Workflow("ops", timeout_ms=1, channels=("slack",), redact_fields=("x",)))
    assert DecisionOutcome(HOLD, workflow=OPS).effect == after.effect


def test_other_policies_are_a_change() -> None:
    needs = NeedsPolicy("", None, "rules[0] *")
    before, after = DecisionOutcome(needs, policies="1"), DecisionOutcome(needs, policies="2")
    assert before.effect != after.effect
    assert after.text_after(before) == f"{before.text()}; with other policies"
    assert DecisionOutcome(HOLD, workflow=OPS).text_after(before) == "hold for the approval workflow ops (rules[0] *)"


def test_duty_to_call_as_a_task_is_part_of_the_effect() -> None:
    before, after = DecisionOutcome(Forward("defaults")), DecisionOutcome(Forward("defaults"), as_task=True)
    assert before.effect != after.effect
    assert after.text_after(before) == "forward (defaults), only as a task"


def found(subject: ChangedName, scope: str, caller: str, after: str = "deny") -> ScopeChange:
    return ScopeChange(subject=subject, scope=scope, callers=(caller,), before="forward", after=after)


TOOL = ChangedName(kind="tool", server="files", name="delete_file")


def test_change_for_all_callers_of_all_scopes_is_one_row() -> None:
    callers = {"default": ["ann", "bob"], "team": ["bob"], "unused": []}
    rows = grouped([found(TOOL, scope, caller) for scope, some in callers.items() for caller in some], callers)
    (row,) = rows
    assert (row.all_callers, row.all_scopes, row.callers, row.scopes) == (
        True,
        True,
        ("ann", "bob"),
        ("default", "team"),
    )
    assert row.line() == "files:delete_file  forward -> deny  callers: all"


def test_change_for_some_callers_and_scopes_names_them() -> None:
    callers = {"default": ["ann", "bob", "eve"], "team": ["ann", "bob", "eve"], "ops": ["eve"]}
    some = [found(TOOL, scope, caller) for scope in ("default", "team") for caller in ("ann", "bob")]
    rows = grouped([*some, found(TOOL, "ops", "eve")], callers)
    assert [row.line() for row in rows] == [
        "files:delete_file  forward -> deny  callers: ann, bob  scopes: default, team",
        "files:delete_file  forward -> deny  callers: all  scopes: ops",
    ]
    assert not any(row.all_scopes for row in rows)


def test_different_changes_of_one_tool_are_different_rows() -> None:
    other = found(TOOL, "default", "bob", "hold")
    assert len(grouped([found(TOOL, "default", "ann"), other], {"default": ["ann", "bob"]})) == 2


def test_change_of_access_names_the_callers() -> None:
    subject = ChangedName(kind=SCOPE, name="team")
    lost = ScopeChange(subject=subject, scope="team", callers=("ann",), before="access", after="no access")
    (row,) = grouped([lost], {"team": []})
    assert row.line() == "scope team  access -> no access  callers: ann"


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (TOOL, "files:delete_file"),
        (ChangedName(kind="resource", server="files", name="file:///a"), "files:resource:file:///a"),
        (ChangedName(kind="prompt", server="files", name="draft"), "files:prompt:draft"),
        (ChangedName(kind="tool", server="files", name="a_x", pattern="a_*"), "files:a_* (for example a_x)"),
        (ChangedName(kind="tool", server="files", name="a", from_script=True), "files:a in scripts"),
        (ChangedName(kind=SCOPE, name="team"), "scope team"),
    ],
)
def test_subject_is_written_as_in_a_rule(subject: ChangedName, text: str) -> None:
    assert subject.text() == text
