"""Two layers that name different workflows: both must approve."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from taskgate.core.governance import grants
from taskgate.core.governance.approval import (
    Approval,
    Binding,
    Changed,
    DecisionRefused,
    State,
    Verdict,
    Voted,
    apply,
    still_approved,
)
from taskgate.core.governance.approver import APPROVER_ROLE, Approver
from taskgate.core.governance.decision import NeedsApproval, NeedsPolicy
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.pipeline import (
    Gates,
    PolicyAnswer,
    PolicyVerdict,
    conclude,
    decide,
    is_configured,
    workflow_named,
)
from taskgate.core.governance.rules import compile_rules
from taskgate.core.governance.workflow import OnTimeout, Workflow, covers, joined, joint_name
from taskgate.core.patterns import PatternKind
from taskgate.core.redaction.fields import compile_redaction, together
from taskgate.core.scoping.registry import ApprovalDemand, ApprovalPolicy
from taskgate.core.settings.governance import Action, Rule

MONEY = Workflow("money", approvers=("role:finance",), approvals_needed=2, timeout_ms=1_000, redact_fields=("iban",))
OPS = Workflow("ops", approvers=("role:ops",), on_timeout=OnTimeout.APPROVE, max_auth_age_s=60, self_approval=True)
BOTH = joined("money+ops", (MONEY, OPS))
BINDING = Binding("caller", "bank", "pay", "sha256:a", "sha256:d", "r", 100_000)
APPROVAL = Approval("ap_1", "money+ops", "rules[0]", BINDING, 0)


def person(name: str, *roles: str) -> Approver:
    return Approver(name, frozenset({APPROVER_ROLE, *(f"role:{role}" for role in roles), *roles}))


FINANCE, TREASURY, OPERATIONS = person("fay", "finance"), person("tom", "finance"), person("olga", "ops")
EVERYBODY = person("eve", "finance", "ops")


def gates(rule: Rule, record: str | None) -> Gates:
    records = {"bank": ApprovalPolicy(ApprovalDemand.APPROVE, workflow=record or None)} if record is not None else {}
    return Gates("r", compile_rules([rule]), records=records, workflows={"money": MONEY, "ops": OPS})


@pytest.mark.parametrize(
    ("of_rule", "of_record", "expected"),
    [
        ("money", "ops", "money+ops"),
        ("ops", "money", "money+ops"),
        ("money", "money", "money"),
        (None, "ops", "default+ops"),
        ("money", None, "money"),
        ("money", "", "money"),
    ],
)
def test_workflows_of_rule_and_record_both_apply(of_rule: str | None, of_record: str | None, expected: str) -> None:
    found = decide(gates(Rule("pay", Action.APPROVE, approval=of_rule), of_record), PatternKind.TOOL, "bank", "pay")
    assert isinstance(found, NeedsApproval)
    assert found.workflow == expected


def test_workflows_of_policy_and_record_both_apply() -> None:
    made = gates(Rule("pay", Action.POLICY), "ops")
    found = decide(made, PatternKind.TOOL, "bank", "pay")
    assert isinstance(found, NeedsPolicy)
    decided = conclude(made, found, PolicyAnswer(PolicyVerdict.APPROVE, "x", ("money",)))
    assert isinstance(decided, NeedsApproval)
    assert decided.workflow == "money+ops"
    unnamed = decide(gates(Rule("pay", Action.POLICY), ""), PatternKind.TOOL, "bank", "pay")
    assert isinstance(unnamed, NeedsPolicy)
    decided = conclude(made, unnamed, PolicyAnswer(PolicyVerdict.APPROVE, "x", ("money",)))
    assert isinstance(decided, NeedsApproval)
    assert decided.workflow == "money", "a record that names no workflow accepts any"


def test_the_strictest_of_every_setting_applies() -> None:
    named = workflow_named(gates(Rule("x", Action.DENY), None), "money+ops")
    assert named == BOTH
    assert (BOTH.timeout_ms, BOTH.approvals_needed, BOTH.self_approval) == (1_000, 3, False)
    assert (BOTH.on_timeout, BOTH.max_auth_age_s, BOTH.redact_fields) == (OnTimeout.DENY, 60, ("iban",))
    assert BOTH.approvers == ("role:finance", "role:ops")
    assert joined("a+b", (replace(OPS, name="a"), OPS)).on_timeout is OnTimeout.APPROVE
    assert joint_name(("ops+money", "money")) == "money+ops"


def test_a_joint_workflow_is_configured_if_each_part_is() -> None:
    made = gates(Rule("x", Action.DENY), None)
    assert [is_configured(made, name) for name in ("money+ops", "default+ops", "gone+ops", "gone")] == [
        True,
        True,
        False,
        False,
    ]


def voted(*people: Approver) -> Approval:
    approval = APPROVAL
    for at, who in enumerate(people, 1):
        outcome = apply(approval, replace(BOTH, max_auth_age_s=None), Voted(who, Verdict.APPROVE, at))
        assert isinstance(outcome, Changed)
        approval = outcome.approval
    return approval


@pytest.mark.parametrize(
    ("people", "approved"),
    [
        ((FINANCE, TREASURY, OPERATIONS), True),
        ((OPERATIONS, FINANCE, TREASURY), True),
        ((FINANCE, TREASURY), False),
        ((OPERATIONS, FINANCE), False),
        ((EVERYBODY,), False),
        ((EVERYBODY, FINANCE), True),
        ((person("one", "ops"), person("two", "ops"), person("three", "ops")), False),
    ],
)
def test_each_workflow_needs_its_own_approvals(people: tuple[Approver, ...], approved: bool) -> None:
    approval = voted(*people)
    assert (approval.state is State.APPROVED) == approved
    if approved:
        standing = {who.id: who for who in people}
        assert still_approved(approval, BOTH, standing)
        for who in people:
            without = {name: other for name, other in standing.items() if name != who.id}
            assert not still_approved(approval, BOTH, without), "each vote was necessary"


def test_person_of_no_workflow_may_not_decide_and_one_denial_ends_it() -> None:
    assert isinstance(apply(APPROVAL, BOTH, Voted(person("x"), Verdict.APPROVE, 1)), DecisionRefused)
    denied = apply(APPROVAL, BOTH, Voted(OPERATIONS, Verdict.DENY, 1))
    assert isinstance(denied, Changed)
    assert denied.approval.state is State.DENIED


def test_grant_needs_people_of_each_workflow() -> None:
    grant = Grant(
        id="g",
        workflow="money+ops",
        server="bank",
        tool="pay",
        scope="",
        principal="caller",
        arguments_digest=None,
        definition_digest="sha256:d",
        granted_at_ms=0,
        until_ms=10,
        granted_by=("fay", "tom", "olga"),
        approval_id="ap_1",
    )
    standing = {who.id: who for who in (FINANCE, TREASURY, OPERATIONS)}
    assert grants.covers(grant, BOTH, BINDING, standing, 5)
    assert not grants.covers(grant, BOTH, BINDING, {**standing, "olga": person("olga", "finance")}, 5)


def test_what_any_workflow_redacts_is_hidden() -> None:
    both = together([compile_redaction(["iban"]), compile_redaction(["name"])])
    assert both.redact({"iban": 1, "name": 2, "amount": 3}).value == {
        "iban": "[hidden]",
        "name": "[hidden]",
        "amount": 3,
    }


@pytest.mark.parametrize(
    ("approved", "required", "expected"),
    [("a+b", "a", True), ("a+b", "b+a", True), ("a", "a+b", False), ("a", "b", False), ("a", "a", True)],
)
def test_what_was_approved_by_more_workflows_than_required_may_run(
    approved: str, required: str, expected: bool
) -> None:
    assert covers(approved, required) is expected
