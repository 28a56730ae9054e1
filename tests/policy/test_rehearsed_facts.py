"""A rehearsal evaluates policies with the facts that were recorded of a call, as the call itself was decided."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.policy.test_cedar import engine

from taskgate.core.generations.generation import Generation
from taskgate.core.governance.pipeline import Gates
from taskgate.core.governance.rehearse import RecordedCall, evaluate_recorded
from taskgate.core.governance.rules import compile_rules
from taskgate.core.patterns import PatternSet
from taskgate.core.risk import Risk
from taskgate.core.scoping.registry import Registry, RegistryRecord, TransportKind
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.settings.governance import Action, Rule
from taskgate.gateway.governance.evaluate import rule_book
from taskgate.gateway.governing import Governing
from taskgate.gateway.plan import Plan

RECORDED = RecordedCall(
    at_ms=5,
    principal="ann",
    scope="default",
    server="s",
    name="t",
    arguments="{}",
    client="editor",
    generation=Generation.STATELESS,
    risk=Risk.READS,
    from_script=True,
)


@pytest.mark.parametrize(
    ("condition", "changes"),
    [
        ("context.from_script", {"from_script": False}),
        ('context has client && context.client == "editor"', {"client": "other"}),
        ('context.generation == "2026-07-28"', {"generation": Generation.STATEFUL}),
        ('context.risk == "reads"', {"risk": Risk.DESTRUCTIVE}),
    ],
)
def test_policy_gets_the_recorded_facts(condition: str, changes: dict[str, Any]) -> None:
    policy = engine(f"permit (principal, action, resource) when {{ {condition} }};")
    gates = Gates("r1", compile_rules([Rule("t", Action.POLICY)]))
    registry = Registry.build([RegistryRecord("s", TransportKind.HTTP, "s", PatternSet.of(["*"]))])
    plan = Plan(1, registry, {"default": ScopePolicy("default", ("s",))}, gates=gates, governing=Governing(policy))
    book = rule_book(plan)
    assert evaluate_recorded(book, RECORDED).after is Action.FORWARD
    assert evaluate_recorded(book, replace(RECORDED, **changes)).after is Action.DENY
