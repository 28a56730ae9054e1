"""Rules with conditions: what is decided by name, what is left, and that both together decide as trying every rule would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskgate.core.facts.conditions import conditions, met
from taskgate.core.facts.table import NO_SCRIPT, Facts
from taskgate.core.facts.truth import Truth
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.decision import (
    Decision,
    Denied,
    Forward,
    Gate,
    NeedsApproval,
    NeedsPolicy,
    Note,
    Residue,
    action_of,
    describe,
)
from taskgate.core.governance.pipeline import (
    MAX_CALLERS,
    EnforcementProfile,
    Gates,
    decide,
    decide_listed,
    decide_unlisted,
    not_evaluated,
    settle,
)
from taskgate.core.governance.rehearse import RecordedCall, RuleBook, evaluate_recorded
from taskgate.core.governance.rules import BadRule, compile_rules
from taskgate.core.governance.workflow import Workflow
from taskgate.core.patterns import PatternKind, PatternSet
from taskgate.core.risk import Risk
from taskgate.core.scoping.registry import (
    ApprovalDemand,
    ApprovalPolicy,
    Registry,
    RegistryRecord,
    TransportKind,
)
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.settings.governance import Action, Rule

TOOL = PatternKind.TOOL


def gates(*rules: Rule, **more: Any) -> Gates:
    return Gates("r1", compile_rules(rules), **more)


def rule(match: str, action: Action, when: dict[str, Any] | None = None, **more: Any) -> Rule:
    return Rule(match, action, when=when or {}, **more)


def decided(made: Gates, name: str, facts: Facts, risk: Risk = Risk.UNDECLARED) -> Decision:
    return settle(made, decide(made, TOOL, "s", name, risk_of=lambda _: risk), facts)


LARGE = {"argument.amount": "> 1000"}


def test_condition_on_an_argument_is_left_for_the_call() -> None:
    made = gates(rule("transfer", Action.APPROVE, LARGE, approval="money"), rule("transfer", Action.FORWARD))
    left = decide(made, TOOL, "s", "transfer")
    assert isinstance(left, Residue)
    assert left.rule == "rules[0] transfer | rules[1] transfer"
    assert left.reason == ""
    large, small = (settle(made, left, Facts(arguments={"amount": amount})) for amount in (5000, 5))
    assert large == NeedsApproval("money", "rules[0] transfer", because="argument.amount > 1000")
    assert small == Forward("rules[1] transfer")
    assert type(decide(made, TOOL, "s", "read")) is Forward, "what no condition concerns is decided by name"


@pytest.mark.parametrize(
    ("action", "expected"),
    [(Action.FORWARD, Action.APPROVE), (Action.APPROVE, Action.APPROVE), (Action.DENY, Action.DENY)],
)
def test_where_a_condition_cannot_be_evaluated_the_strictest_decision_counts(action: Action, expected: Action) -> None:
    made = gates(rule("transfer", action, LARGE), rule("transfer", Action.APPROVE))
    found = decided(made, "transfer", Facts(arguments={"amount": "5000"}))
    assert action_of(found) is expected
    if action is Action.DENY:
        assert isinstance(found, Denied)
        assert found.because == "it cannot be ruled out: argument.amount > 1000"


def test_a_policy_that_may_apply_is_evaluated_under_what_else_is_required() -> None:
    made = gates(rule("t", Action.POLICY, LARGE), rule("t", Action.APPROVE))
    found = decided(made, "t", Facts(arguments={"amount": "x"}))
    assert isinstance(found, NeedsPolicy)
    assert found.at_least_approve == "default"


def test_conditions_on_the_entry_are_evaluated_by_name() -> None:
    made = gates(
        rule("*", Action.DENY, {"tags": "prod", "risk": "destructive"}),
        rule("*", Action.APPROVE, {"risk": ">= undeclared"}),
        tags={"s": frozenset({"prod"})},
    )
    found = [decide(made, TOOL, "s", "x", risk_of=lambda _, risk=risk: risk) for risk in Risk]  # type: ignore[misc]
    assert [action_of(each) for each in found] == [Action.FORWARD, Action.FORWARD, Action.APPROVE, Action.DENY]
    other = decide(made, TOOL, "without tags", "x", risk_of=lambda _: Risk.DESTRUCTIVE)
    assert action_of(other) is Action.APPROVE


def test_gates_of_a_caller_evaluate_conditions_on_it_by_name() -> None:
    made = gates(rule("delete_*", Action.DENY, {"role": "intern"}), rule("pay", Action.APPROVE, LARGE))
    intern, boss = (made.of_caller(Facts(roles=frozenset({role}))) for role in ("intern", "boss"))
    assert action_of(decide(intern, TOOL, "s", "delete_x")) is Action.DENY
    assert type(decide(boss, TOOL, "s", "delete_x")) is Forward
    assert isinstance(decide(made, TOOL, "s", "delete_x"), Residue), "not known of all callers"
    assert isinstance(decide(intern, TOOL, "s", "pay"), Residue)
    assert made.of_caller(Facts(roles=frozenset({"boss"}), principal="another")) is boss


def test_gates_of_many_callers_are_bounded() -> None:
    made = gates(rule("x", Action.DENY, {"caller": "ann"}))
    for number in range(MAX_CALLERS + 1):
        made.of_caller(Facts(principal=f"p{number}"))
    assert len(made._of_callers) == 1
    assert action_of(decide(made.of_caller(Facts(principal="ann")), TOOL, "s", "x")) is Action.DENY


def test_record_restricts_every_branch() -> None:
    records = {"s": ApprovalPolicy(ApprovalDemand.APPROVE, workflow="ops")}
    made = gates(rule("t", Action.DENY, LARGE), records=records, workflows={"ops": Workflow("ops")})
    assert decided(made, "t", Facts(arguments={"amount": 5})) == NeedsApproval("ops", "servers.s.approval_policy")
    assert action_of(decided(made, "t", Facts(arguments={"amount": 5000}))) is Action.DENY


def test_development_profile_notes_what_would_have_been_decided() -> None:
    made = gates(rule("t", Action.DENY, LARGE), profile=EnforcementProfile.DEVELOPMENT)
    found = decided(made, "t", Facts(arguments={"amount": 5000}))
    assert isinstance(found, Forward)
    assert (found.note, found.because) == (Note.WOULD_DENY, "argument.amount > 1000")


def test_names_that_look_alike_get_the_strictest_decision_of_the_call() -> None:
    made = gates(rule("drop", Action.APPROVE, LARGE), rule("DROP", Action.DENY, {"argument.amount": "< 0"}))
    left = decide_listed(made, TOOL, "s", "drop", ("DROP",))
    assert isinstance(left, Residue)
    found = [settle(made, left, Facts(arguments={"amount": amount})) for amount in (5000, 5, -1)]
    assert [action_of(each) for each in found] == [Action.APPROVE, Action.FORWARD, Action.DENY]
    unlisted = decide_unlisted(made, TOOL, "s", "Drop")
    found = [settle(made, unlisted, Facts(arguments={"amount": amount})) for amount in (5000, 5, -1)]
    assert [action_of(each) for each in found] == [Action.APPROVE, Action.FORWARD, Action.DENY]


def test_a_denied_lookalike_denies_whatever_the_call() -> None:
    made = gates(rule("drop", Action.APPROVE, LARGE), rule("DROP", Action.DENY))
    assert action_of(decide_listed(made, TOOL, "s", "drop", ("DROP",))) is Action.DENY


def test_a_lookalike_without_conditions_restricts_the_residue() -> None:
    made = gates(rule("drop", Action.DENY, LARGE), rule("DROP", Action.APPROVE))
    left = decide_listed(made, TOOL, "s", "drop", ("DROP",))
    found = [settle(made, left, Facts(arguments={"amount": amount})) for amount in (5000, 5)]
    assert [action_of(each) for each in found] == [Action.DENY, Action.APPROVE]


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ([rule("t", Action.APPROVE, LARGE)], Action.APPROVE),
        ([rule("t", Action.POLICY, LARGE)], Action.APPROVE),
        ([rule("t", Action.DENY, LARGE)], Action.FORWARD),
        ([rule("t", Action.DENY, LARGE), rule("t", Action.APPROVE)], Action.APPROVE),
        ([rule("t", Action.DENY, LARGE), rule("t", Action.DENY)], Action.DENY),
        ([rule("t", Action.DENY, {"time": "08:00-18:00 UTC"})], Action.FORWARD),
    ],
)
def test_action_of_a_residue_for_lists_and_annotations(rules: list[Rule], shown: Action) -> None:
    assert action_of(decide(gates(*rules), TOOL, "s", "t")) is shown


def test_a_residue_is_described_with_its_conditions() -> None:
    made = gates(rule("t", Action.DENY, LARGE), rule("t", Action.APPROVE, {"client": "x"}))
    assert describe(decide(made, TOOL, "s", "t")) == (
        "deny at rules: denied by rule (rules[0] t) if argument.amount > 1000, otherwise hold for the approval workflow "
        "default (rules[1] t) if client is x, otherwise forward (defaults)"
    )
    found = decided(made, "t", Facts(arguments={"amount": 5000}, client="y"))
    assert describe(found) == "deny at rules: denied by rule (rules[0] t) because argument.amount > 1000"


def test_what_is_left_open_can_be_named() -> None:
    made = gates(rule("t", Action.DENY, LARGE))
    left = decide(made, TOOL, "s", "t")
    assert [str(each) for each in not_evaluated(left, Facts())] == ["argument.amount > 1000"]
    assert not_evaluated(left, Facts(arguments={"amount": 5})) == []
    assert not_evaluated(Forward("x"), Facts()) == []


def test_rule_for_scripts_is_a_condition() -> None:
    made = gates(Rule("t", Action.DENY, from_="script", when=LARGE))
    assert type(decide(made.of_caller(NO_SCRIPT), TOOL, "s", "t")) is Forward
    of_script = made.of_caller(Facts(from_script=True))
    found = settle(of_script, decide(of_script, TOOL, "s", "t"), Facts(arguments={"amount": 5000}))
    assert found == Denied(
        Gate.RULES,
        "denied by rule",
        "policy_denied",
        "rules[0] t",
        because="from_script is true and argument.amount > 1000",
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (rule("t", Action.DENY, {"nothing": "x"}), "governance.rules[0]: nothing: there is no such fact"),
        (rule("resource:*", Action.DENY, {"risk": "reads"}), "risk: only makes sense for tools"),
        (rule("prompt:*", Action.DENY, {"from_script": "true"}), "from_script: only makes sense for tools"),
    ],
)
def test_invalid_condition_is_refused_with_its_place(bad: Rule, words: str) -> None:
    with pytest.raises(BadRule) as problem:
        compile_rules([bad])
    assert words in str(problem.value)


WHENS: list[dict[str, Any]] = [
    {},
    {"argument.a": "> 5"},
    {"argument.a": "x*"},
    {"role": "intern"},
    {"risk": ">= undeclared"},
    {"tags": "prod", "argument.a": {"not": "7"}},
    {"from_script": "true"},
    {"time": "08:00-18:00 UTC"},
    {"client": ["a*", "b"], "role": "boss"},
]
RULES = st.lists(
    st.builds(
        rule,
        st.sampled_from(["*", "a*", "ab", "*b", "s:a*", "t:*", "[ab]*"]),
        st.sampled_from([Action.FORWARD, Action.APPROVE, Action.DENY]),
        st.sampled_from(WHENS),
        server=st.sampled_from([None, None, "s", "t"]),
    ),
    max_size=6,
)
FACTS = st.builds(
    Facts,
    roles=st.sampled_from([frozenset[str](), frozenset({"intern"}), frozenset({"boss", "intern"})]),
    from_script=st.booleans(),
    client=st.sampled_from(["abc", "b", ""]),
    at_s=st.sampled_from([0, 43_200]),
    arguments=st.sampled_from([{}, {"a": 6}, {"a": 7}, {"a": "x1"}, {"a": [1]}]),
    risk=st.sampled_from(Risk),
)


def slowly(rules: list[Rule], facts: Facts, server: str, name: str) -> tuple[Action, str]:
    """Try every rule in order. Where a condition cannot be evaluated, the strictest of both outcomes counts."""
    possible = list[tuple[int, Action, str]]()
    order = [Action.FORWARD, Action.APPROVE, Action.DENY]
    for number, each in enumerate(rules):
        from taskgate.core.patterns import Pattern

        if not Pattern.compile(each.match).matches(server, name) or each.server not in (None, server):
            continue
        truth = met(conditions(each.when), facts)
        if truth is not Truth.NO:
            possible.append((order.index(each.action), each.action, f"rules[{number}] {each.match}"))
        if truth is Truth.YES:
            break
    else:
        possible.append((0, Action.FORWARD, "defaults"))
    strictest = max(possible, key=lambda found: found[0])
    return strictest[1], strictest[2]


@given(RULES, FACTS, st.sampled_from(["s", "t", "u"]), st.sampled_from(["a", "ab", "b", "cb"]), st.booleans())
def test_rules_decide_as_trying_each_of_them_would(
    rules: list[Rule], facts: Facts, server: str, name: str, of_caller: bool
) -> None:
    tags = {"s": frozenset({"prod"})}
    made = gates(*rules, tags=tags)
    facts = replace(facts, kind=TOOL, server=server, name=name, tags=tags.get(server, frozenset()))
    used = made.of_caller(Facts(roles=facts.roles, from_script=facts.from_script)) if of_caller else made
    risk = facts.risk
    assert isinstance(risk, Risk)
    for _ in range(2):
        found = settle(used, decide(used, TOOL, server, name, risk_of=lambda _: risk), facts)
        expected = slowly(rules, facts, server, name)
        assert action_of(found) is expected[0]
        if action_of(found) is not Action.APPROVE:
            assert found.rule == expected[1]


def test_what_no_server_lists_has_no_declared_risk() -> None:
    made = gates(rule("x", Action.DENY, {"risk": "undeclared"}), rule("y", Action.DENY, {"risk": "reads"}))
    assert action_of(decide(made, TOOL, "s", "x")) is Action.DENY
    assert action_of(decide(made, TOOL, "s", "y")) is Action.FORWARD
    assert action_of(decide_unlisted(made, TOOL, "s", "X")) is Action.DENY


def test_what_is_determined_is_settled() -> None:
    made = gates(rule("x", Action.DENY))
    assert settle(made, decide(made, TOOL, "s", "x"), Facts()) == decide(made, TOOL, "s", "x")


@pytest.mark.parametrize(
    ("changes", "after", "words"),
    [
        ({"arguments": '{"amount": 5000}'}, Action.DENY, "denied by rule"),
        ({"arguments": '{"amount": 5}'}, Action.FORWARD, ""),
        ({}, None, "the condition argument.amount > 1000 cannot be evaluated, because it was not recorded"),
        ({"unread": "longer than 16384 bytes"}, None, "because longer than 16384 bytes"),
        ({"arguments": "{}", "hidden": ("amount",)}, None, "because amount was redacted"),
        ({"ambiguous": "two names"}, Action.DENY, "its arguments cannot be evaluated: two names"),
        ({"arguments": '{"amount": "5000"}'}, Action.DENY, "denied by rule"),
    ],
)
def test_rehearsal_of_a_call_that_conditions_concern(changes: dict[str, Any], after: Action | None, words: str) -> None:
    found = evaluate_recorded(book(rule("t", Action.DENY, LARGE)), recorded(**changes))
    assert found.after is after
    assert words in found.why


def test_rehearsal_needs_the_risk_and_the_client_of_the_call() -> None:
    by_risk = book(rule("t", Action.DENY, {"risk": "destructive"}))
    assert evaluate_recorded(by_risk, recorded()).after is None
    assert evaluate_recorded(by_risk, recorded(risk=Risk.DESTRUCTIVE)).after is Action.DENY
    assert evaluate_recorded(by_risk, recorded(risk=Risk.READS)).after is Action.FORWARD
    by_client = book(rule("t", Action.DENY, {"client": "x", "generation": "2026-07-28", "token": "t1"}))
    assert evaluate_recorded(by_client, recorded(generation=Generation.STATELESS)).after is None
    known = recorded(client="x", generation=Generation.STATELESS)
    assert evaluate_recorded(by_client, known).after is Action.DENY


def recorded(**changes: Any) -> RecordedCall:
    return replace(RecordedCall(at_ms=5, principal="ann", scope="default", server="s", name="t"), **changes)


def book(*rules: Rule) -> RuleBook:
    def never(*_: object) -> object:
        raise AssertionError("no rule refers to the policy")

    server = RegistryRecord("s", TransportKind.HTTP, "s", PatternSet.of(["*"]))
    return RuleBook(
        gates=gates(*rules),
        registry=Registry.build([server]),
        scopes={"default": ScopePolicy("default", ("s",), ("s",))},
        ask_policy=never,  # type: ignore[arg-type]
        token_ids={"ann": "t1"},
    )


def test_all_patterns_of_rules_with_conditions_are_found() -> None:
    matches = [
        "exact_name",
        "exact_*",
        "*_name",
        "*act_n*",
        "other",
        "other_*",
        "*_other",
        "*other*",
        "?xact_name",
        "*",
    ]
    made = gates(*(rule(match, Action.DENY, LARGE) for match in matches))
    found = decide(made, TOOL, "s", "exact_name")
    assert isinstance(found, Residue)
    labels = [branch.decision.rule for branch in found.branches]
    assert labels == [f"rules[{number}] {matches[number]}" for number in (0, 1, 2, 3, 8, 9)] + ["defaults"]


UNCLEAR = Facts(arguments={"amount": "5000"})
TWO_WORKFLOWS = {"money": Workflow("money"), "team": Workflow("team", approvals_needed=2)}


@pytest.mark.parametrize("order", [("money", "team"), ("team", "money")])
def test_if_either_of_two_workflows_may_be_required_both_must_approve(order: tuple[str, str]) -> None:
    first, last = order
    made = gates(
        rule("t", Action.APPROVE, LARGE, approval=first),
        rule("t", Action.APPROVE, approval=last),
        workflows=TWO_WORKFLOWS,
    )
    found = decided(made, "t", UNCLEAR)
    assert isinstance(found, NeedsApproval)
    assert (found.workflow, found.rule) == ("money+team", "rules[0] t")
    assert decided(made, "t", Facts(arguments={"amount": 5})) == NeedsApproval(last, "rules[1] t")


def test_a_policy_that_may_apply_is_evaluated_under_both_workflows() -> None:
    made = gates(
        rule("t", Action.APPROVE, LARGE, approval="money"),
        rule("t", Action.APPROVE, {"client": "x"}, approval="team"),
        rule("t", Action.POLICY, policy_id="p"),
        workflows=TWO_WORKFLOWS,
    )
    found = decided(made, "t", UNCLEAR)
    assert isinstance(found, NeedsPolicy)
    assert (found.policy_id, found.at_least_approve) == ("p", "money+team")


def test_if_either_of_two_policies_may_apply_the_call_is_denied() -> None:
    made = gates(
        rule("t", Action.POLICY, {"argument.trial": "true"}, policy_id="trial"),
        rule("t", Action.POLICY, policy_id="strict"),
    )
    found = decided(made, "t", Facts(arguments={"trial": [True]}))
    assert isinstance(found, Denied)
    assert (found.gate, found.error_type, found.rule) == (Gate.POLICY, "policy_denied", "rules[0] t")
    assert found.because == "it cannot be ruled out: argument.trial is true"
    assert decided(made, "t", Facts(arguments={})) == NeedsPolicy("strict", None, "rules[1] t")
    one = gates(rule("t", Action.POLICY, LARGE, policy_id="p"), rule("t", Action.POLICY, policy_id="p"))
    assert isinstance(decided(one, "t", UNCLEAR), NeedsPolicy)


def test_rehearsal_guesses_nothing_if_another_condition_cannot_be_evaluated() -> None:
    rules = book(rule("t", Action.APPROVE, LARGE), rule("t", Action.DENY, {"client": "x"}))
    unclear = recorded(arguments='{"amount": "5000"}')
    assert evaluate_recorded(rules, unclear).after is None
    assert evaluate_recorded(rules, replace(unclear, client="y")).after is Action.APPROVE
    assert evaluate_recorded(rules, replace(unclear, client="x")).after is Action.DENY
