"""`taskgate check` warns of rules that forward by what a caller can state as it likes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.config import load_text
from taskgate.core.facts.table import ARGUMENT_NAME, FACTS


def warned(action: str, when: dict[str, Any]) -> list[str]:
    rules = [{"match": "*", "when": when, "action": action}]
    text = json.dumps({"governance": {"defaults": {"action": "deny"}, "rules": rules}})
    return [line for line in map(str, load_text(text, environment={}).warnings) if "governance.rules[0].when" in line]


@pytest.mark.parametrize("fact", FACTS.values(), ids=lambda fact: fact.name)
def test_rule_that_forwards_by_a_forgeable_fact_causes_a_warning(fact: Any) -> None:
    name = fact.name if fact.name != ARGUMENT_NAME else "argument.a"
    assert len(warned("forward", {name: fact.example})) == (fact.name in ("client", "generation"))
    assert warned("deny", {name: fact.example}) == []
