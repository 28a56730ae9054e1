"""Rehearsing recorded calls against changed rules: exact where everything is known, otherwise undecided."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.governance.decision import NeedsPolicy
from taskgate.core.governance.pipeline import EnforcementProfile, Gates, PolicyAnswer, PolicyVerdict, decide
from taskgate.core.governance.rehearse import (
    EXAMPLES,
    NOT_RECORDED,
    UNDECIDED,
    RecordedCall,
    Rehearsal,
    RuleBook,
    evaluate_recorded,
    rehearse,
)
from taskgate.core.governance.rules import compile_rules
from taskgate.core.governance.suggestions import ToolHistory, suggest
from taskgate.core.patterns import PatternKind, PatternSet
from taskgate.core.scoping.registry import Registry, RegistryRecord, TransportKind
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.settings.governance import Action, Rule

FILES = RegistryRecord("files", TransportKind.HTTP, "files", PatternSet.of(["*"]))
OTHER = RegistryRecord("other", TransportKind.HTTP, "other", PatternSet.of(["*"]))
SCOPES = {
    "default": ScopePolicy("default", ("files",), ("files", "other")),
    "narrow": ScopePolicy("narrow", ("files",), None, None, PatternSet.of(["delete_*"])),
}


def never(_decision: NeedsPolicy, _call: RecordedCall) -> PolicyAnswer:
    raise AssertionError("the policy must not be asked")


def book(*rules: Rule, ask: Any = never, **gates: Any) -> RuleBook:
    return RuleBook(Gates("r1", compile_rules(rules), **gates), Registry.build([FILES, OTHER]), SCOPES, ask)


def call(name: str = "read", **facts: Any) -> RecordedCall:
    return RecordedCall(5, "ann", scope="default", server="files", name=name, **{"arguments": "{}", **facts})


@pytest.mark.parametrize(
    ("rule", "after"),
    [
        (Rule("read", Action.DENY), Action.DENY),
        (Rule("read", Action.APPROVE), Action.APPROVE),
        (Rule("read", Action.FORWARD), Action.FORWARD),
        (Rule("write", Action.DENY), Action.FORWARD),
    ],
)
def test_rules_by_name_are_evaluated_for_every_call(rule: Rule, after: Action) -> None:
    rules = book(rule)
    for recorded in (call(), call(arguments=None), call(hidden=("a",))):
        result = evaluate_recorded(rules, recorded)
        assert result.after is after
        assert result.after.value == result.outcome
        assert result.changes is (after is not Action.FORWARD)
    assert result.rule == decide(rules.gates, PatternKind.TOOL, "files", "read").rule


def test_a_policy_is_evaluated_with_the_recorded_call() -> None:
    seen: list[RecordedCall] = []

    def ask(_decision: NeedsPolicy, recorded: RecordedCall) -> PolicyAnswer:
        seen.append(recorded)
        return PolicyAnswer(PolicyVerdict.REJECT, "too much")

    recorded = call(arguments='{"amount":5}')
    result = evaluate_recorded(book(Rule("read", Action.POLICY), ask=ask), recorded)
    assert seen == [recorded]
    assert (result.after, result.why) == (Action.DENY, "too much")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"arguments": None}, "the policy needs its arguments, not recorded"),
        ({"arguments": None, "unread": "too long"}, "the policy needs its arguments, too long"),
        ({"hidden": ("token", "a.b")}, "the policy needs its arguments, of which are redacted: token, a.b"),
    ],
)
def test_missing_or_redacted_arguments_are_not_guessed(facts: dict[str, Any], why: str) -> None:
    result = evaluate_recorded(book(Rule("read", Action.POLICY)), call(**facts))
    assert (result.after, result.outcome, result.why, result.changes) == (None, UNDECIDED, why, False)


@pytest.mark.parametrize("action", [Action.POLICY, Action.APPROVE])
def test_arguments_that_cannot_be_evaluated_are_refused_if_a_policy_reads_them(action: Action) -> None:
    result = evaluate_recorded(book(Rule("read", action)), call(arguments=None, ambiguous="twice the same key"))
    assert result.after is Action.DENY
    assert "twice the same key" in result.why
    assert evaluate_recorded(book(), call(arguments=None, ambiguous="twice the same key")).after is Action.FORWARD


def test_a_scope_that_no_longer_has_it_refuses_it() -> None:
    for scope, name, after in (
        ("narrow", "delete_x", Action.DENY),
        ("narrow", "read", Action.FORWARD),
        ("gone", "read", Action.DENY),
    ):
        assert evaluate_recorded(book(), RecordedCall(5, scope=scope, server="files", name=name)).after is after


def test_a_server_selected_by_the_session_need_not_be_a_default_of_the_scope() -> None:
    rules = book()
    beyond = RecordedCall(5, scope="default", server="other", name="read")
    assert evaluate_recorded(rules, beyond).after is Action.DENY
    asked = RecordedCall(5, scope="default", server="other", name="read", server_requested=True)
    assert evaluate_recorded(rules, asked).after is Action.FORWARD


def test_a_temporary_scope_is_in_no_configuration() -> None:
    assert evaluate_recorded(book(), call(temporary=True)).after is None


def test_an_unlisted_name_is_reported_only_if_it_is_refused_anyway() -> None:
    assert evaluate_recorded(book(Rule("read", Action.DENY)), call("READ", listed=False)).after is Action.DENY
    assert evaluate_recorded(book(), call("read", listed=False)).after is None


def test_development_forwards_what_production_would_stop() -> None:
    result = evaluate_recorded(book(Rule("read", Action.DENY), profile=EnforcementProfile.DEVELOPMENT), call())
    assert result.after is Action.FORWARD


def test_calls_are_counted_by_what_changes_and_those_not_recorded_too() -> None:
    calls = [call(), call("write"), call("write", before=Action.DENY), RecordedCall(7, count=30)]
    found = rehearse(book(Rule("write", Action.DENY)), calls)
    assert (found.calls, found.changed, found.undecided) == (33, 1, 30)
    assert found.outcomes == {
        ("deny", "deny"): 1,
        ("forward", "deny"): 1,
        ("forward", "forward"): 1,
        (NOT_RECORDED, UNDECIDED): 30,
    }
    tools = {(name, after): count for (_, name, _, after, _), count in found.tools.items()}
    assert tools == {("", UNDECIDED): 30, ("write", "deny"): 1}
    assert [(one.call.principal, one.call.name, one.rule) for one in found.examples] == [
        ("ann", "write", "rules[0] write")
    ]


def test_a_rehearsal_goes_on_page_by_page_and_shows_only_so_many() -> None:
    rules, found = book(Rule("*", Action.DENY)), Rehearsal()
    for _ in range(3):
        rehearse(rules, [call()] * EXAMPLES, found)
    assert found.changed == 3 * EXAMPLES
    assert len(found.examples) == EXAMPLES


@pytest.mark.parametrize(
    ("history", "ask"),
    [
        (ToolHistory("s", "t", approved=5), "less"),
        (ToolHistory("s", "t", approved=4), None),
        (ToolHistory("s", "t", approved=9, denied=1), None),
        (ToolHistory("s", "t", approved=9, expired=1), None),
        (ToolHistory("s", "t", approved=9, risky=True), None),
        (ToolHistory("s", "t", forwarded=1, risky=True), "more"),
        (ToolHistory("s", "t", forwarded=0, risky=True), None),
        (ToolHistory("s", "t", forwarded=9), None),
        (ToolHistory("s", "t", forwarded=9, approved=1, risky=True), None),
    ],
)
def test_suggestions_follow_what_people_did(history: ToolHistory, ask: str | None) -> None:
    found = suggest([history])
    assert [one.ask for one in found] == ([ask] if ask is not None else [])


def test_a_suggested_rule_is_yaml_that_matches_only_that_tool() -> None:
    import yaml

    (found,) = suggest([ToolHistory("s", 'rm"*[x]', forwarded=1, risky=True)])
    (rule,) = yaml.safe_load(found.rule)
    compiled = compile_rules([Rule(rule["match"], Action(rule["action"]), rule["server"])])
    assert compiled.match(PatternKind.TOOL, "s", 'rm"*[x]')[-1].action is Action.APPROVE
    assert compiled.match(PatternKind.TOOL, "s", 'rm"aaa[x]')[-1].action is Action.FORWARD
