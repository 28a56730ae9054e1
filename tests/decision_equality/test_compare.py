"""The comparison of two versions sees what decides differently, and the generated calls reach every kind of decision."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.decision_equality.adapter import NOT_DECIDED, Plain
from tests.decision_equality.answers import answers
from tests.decision_equality.compare import Comparison, compared, kind_of, shown
from tests.decision_equality.generated_calls import CALLS, CALLS_OF_ALIKE, Case, cases

from taskgate.core.facts.table import NO_SCRIPT
from taskgate.core.governance import pipeline
from taskgate.core.governance.decision import Forward
from taskgate.core.governance.rules import RuleSet
from taskgate.core.scoping.subset import Subset
from taskgate.core.settings.governance import Action

CONFIGURATIONS = 60


@pytest.fixture(scope="module")
def generated() -> list[Case]:
    return list(cases(CONFIGURATIONS))


@pytest.fixture(scope="module")
def decided(generated: list[Case]) -> list[list[Plain]]:
    found = [answers(case) for case in generated]
    assert all(isinstance(each, list) for each in found)
    return [each for each in found if isinstance(each, list)]


def test_every_version_gets_the_same_cases(generated: list[Case]) -> None:
    assert generated == list(cases(CONFIGURATIONS))


def test_generated_calls_reach_every_kind_of_decision(generated: list[Case], decided: list[list[Plain]]) -> None:
    rows = [row for each in decided for row in each]
    assert len(rows) == CONFIGURATIONS * (CALLS + CALLS_OF_ALIKE)
    count = Counter(f"{field}={row.get(field)}" for row in rows for field in ("action", "gate", "error_type", "note"))
    count += Counter(
        f"{field}={row.get(field)}" for row in rows for field in ("workflow", "at_least_approve", "forced")
    )
    for value in (
        *(f"action={each.value}" for each in Action),
        *("gate=visibility", "gate=rules", "error_type=unknown_tool", "error_type=policy_denied"),
        *("note=WOULD_DENY", "note=WOULD_HOLD", "forced=True", "workflow=money", "workflow=default"),
    ):
        assert count[value] >= 5, value
    assert len({row.get("at_least_approve") for row in rows}) > 2
    reasons = Counter(str(row["reason"]) for row in rows if row["action"] == "deny")
    for reason in (
        "on a deny list",
        "not on the allow list",
        "looks like a name on a deny list",
        "looks like something that is withheld",
        "its URI can be read in two ways",
        "its definition changed and is not accepted yet",
        "denied by the server's record",
        "denied by rule",
    ):
        assert reasons[reason], reason
    assert sum(row["rule"].startswith("rules[") for row in rows if row["rule"]) > len(rows) / 5
    lists = Counter(row["scope"].rpartition(" ")[2] for row in rows if row["scope"] and "tool_" in row["scope"])
    assert {"allowed_tools", "tool_allowlist", "tool_denylist"} <= lists.keys()
    calls = [call for case in generated for call in case.calls]
    assert {(call.kind, call.listed) for call in calls} >= {
        (kind, listed) for kind in ("tool", "resource", "prompt") for listed in (True, False)
    }


BREAKAGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "rules for scripts": lambda m: m.setattr(
        pipeline.Gates, "of_caller", lambda gates, _, of_caller=pipeline.Gates.of_caller: of_caller(gates, NO_SCRIPT)
    ),
    "force_required": lambda m: m.setattr(RuleSet, "forced", lambda *_: False),
    "quarantine": lambda m: m.setattr(pipeline, "_quarantine_name", lambda *_: ""),
    "names that look alike": lambda m: m.setattr(pipeline, "_by_lookalike", lambda *_: Forward("")),
    "strictest workflow": lambda m: m.setattr(pipeline, "_strictest", lambda _, names: list(names)[-1]),
    "records": lambda m: m.setattr(pipeline, "_tighten", lambda decision, *_: decision),
    "profile": lambda m: m.setattr(pipeline, "_enforce", lambda _, decision: decision),
    "lists of a scope": lambda m: m.setattr(Subset, "denies_lookalike", lambda *_: None),
}


@pytest.mark.parametrize("broken", BREAKAGES)
def test_a_change_of_any_vocabulary_is_found(
    generated: list[Case], decided: list[list[Plain]], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BREAKAGES[broken](monkeypatch)
    found = Comparison()
    for case, before in zip(generated, decided, strict=True):
        found.add(case, before, answers(case))
    assert found.found
    assert found.equal


@pytest.mark.parametrize(
    ("field", "value"),
    [("action", "other"), ("reason", "other"), ("rule", "other"), ("after_policy", [{}]), ("new", 1), ("scope", "x")],
)
def test_a_different_field_is_a_difference(
    generated: list[Case], decided: list[list[Plain]], field: str, value: Any
) -> None:
    after = copy.deepcopy(decided[0])
    after[7][field] = value
    found = compared(generated[:1], json.dumps(decided[0]), json.dumps(after))
    (examples,) = found.found.values()
    assert [(one.call, one.after[field]) for one in examples] == [(generated[0].calls[7], value)]
    assert found.equal == len(after) - 1
    assert field in shown(examples)


def test_calls_that_one_version_cannot_decide_are_counted_apart(
    generated: list[Case], decided: list[list[Plain]]
) -> None:
    before = [{"action": NOT_DECIDED}, *decided[0][1:]]
    found = compared(generated[:1], json.dumps(before), json.dumps(decided[0]))
    assert (found.not_decided, found.equal, dict(found.found)) == (1, len(before) - 1, {})


def test_a_configuration_that_one_version_refuses_is_a_difference(
    generated: list[Case], decided: list[list[Plain]]
) -> None:
    refusal = {"problems": ["governance.rules[0]: no"]}
    assert compared(generated[:1], json.dumps(refusal), json.dumps(decided[0])).found
    assert compared(generated[:1], json.dumps(refusal), json.dumps(refusal)).refused == 1


def test_kind_of_difference_names_values_of_main_fields_only() -> None:
    before = {"action": "deny", "reason": "a", "rule": "rules[0] x"}
    after = {"action": "forward", "reason": "b", "rule": "rules[0] x"}
    assert kind_of(before, after) == 'action "deny" -> "forward", reason'
