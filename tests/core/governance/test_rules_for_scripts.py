"""Rules with `from: script` decide calls that scripts make, and no others."""

from __future__ import annotations

import pytest

from taskgate.core.facts.table import Facts
from taskgate.core.governance.decision import action_of
from taskgate.core.governance.pipeline import Gates, UnknownWorkflow, check_workflows, decide
from taskgate.core.governance.rehearse import RecordedCall, RuleBook, evaluate_recorded
from taskgate.core.governance.rules import BadRule, compile_rules
from taskgate.core.patterns import PatternKind, PatternSet
from taskgate.core.scoping.registry import Registry, RegistryRecord, TransportKind
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.settings.governance import Action, Rule

RULES = (
    Rule("delete_*", Action.DENY, from_="script"),
    Rule("delete_*", Action.APPROVE),
    Rule("pay", Action.FORWARD, from_="script"),
    Rule("pay", Action.DENY),
)


def gates(*rules: Rule) -> Gates:
    return Gates("r1", compile_rules(rules))


@pytest.mark.parametrize(
    ("name", "plain", "from_script"),
    [
        ("delete_file", (Action.APPROVE, "rules[1] delete_*"), (Action.DENY, "rules[0] delete_*")),
        ("pay", (Action.DENY, "rules[3] pay"), (Action.FORWARD, "rules[2] pay")),
        ("read", (Action.FORWARD, "defaults"), (Action.FORWARD, "defaults")),
    ],
)
def test_first_rule_for_the_origin_of_the_call_decides(
    name: str, plain: tuple[Action, str], from_script: tuple[Action, str]
) -> None:
    made = gates(*RULES)
    # In both orders: neither kind of call may receive the cached decision of the other.
    for is_script, expected in ((False, plain), (True, from_script), (False, plain)):
        decision = decide(made.of_caller(Facts(from_script=is_script)), PatternKind.TOOL, "files", name)
        assert (action_of(decision), decision.rule) == expected


def test_without_rules_for_scripts_all_calls_have_the_same_gates() -> None:
    made = Gates("r1", compile_rules([Rule("pay", Action.DENY)]))
    assert made.of_caller(Facts(from_script=True)) is made


@pytest.mark.parametrize("match", ["resource:*", "prompt:*"])
def test_rule_for_scripts_must_be_about_tools(match: str) -> None:
    with pytest.raises(BadRule):
        compile_rules([Rule(match, Action.DENY, from_="script")])


def test_workflow_of_a_rule_for_scripts_must_exist() -> None:
    with pytest.raises(UnknownWorkflow):
        check_workflows(gates(Rule("pay", Action.APPROVE, approval="money", from_="script")))


@pytest.mark.parametrize(("from_script", "after"), [(False, Action.APPROVE), (True, Action.DENY)])
def test_rehearsal_evaluates_a_recorded_call_by_its_origin(from_script: bool, after: Action) -> None:
    files = RegistryRecord("files", TransportKind.HTTP, "files", PatternSet.of(["*"]))
    scopes = {"default": ScopePolicy("default", ("files",), ("files",))}

    def never(*_: object) -> object:
        raise AssertionError("no rule refers to the policy")

    book = RuleBook(gates(*RULES), Registry.build([files]), scopes, never)  # type: ignore[arg-type]
    call = RecordedCall(5, "ann", scope="default", server="files", name="delete_file", from_script=from_script)
    assert evaluate_recorded(book, call).after is after
