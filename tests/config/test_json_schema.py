"""The schema for editors: it accepts every file that loads, and reports common mistakes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from taskgate.config import load_text
from taskgate.config.explain import example
from taskgate.config.json_schema import configuration_schema
from taskgate.core.facts.table import ARGUMENT_NAME, FACTS

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "examples").glob("*.yaml")), ROOT / "tests/config/complete/taskgate.yaml"]


CONDITIONS: list[dict[str, Any]] = [
    {fact.name if fact.name != ARGUMENT_NAME else "argument.a.*.b": form}
    for fact in FACTS.values()
    for form in (fact.example, [fact.example], {"not": fact.example}, {"one_of": [fact.example, {"not": fact.example}]})
]


def rule(when: dict[str, Any]) -> dict[str, Any]:
    return {"governance": {"rules": [{"match": "*", "action": "deny", "when": when}]}}


@cache
def validator() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(configuration_schema())


@pytest.mark.parametrize("text", [example(), *(file.read_text() for file in FILES)])
def test_files_that_load_are_valid_by_the_json_schema(text: str) -> None:
    assert [error.message for error in validator().iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    "right",
    [
        {"mcpServers": {"a": {"command": "x", "args": ["y"]}}},
        {"limits": {"request_bytes": "16MiB"}},
        {"limits": {"list_max_age": "${AGE}", "events_age": "10m"}},
        {"pins": False},
        *(rule(when) for when in CONDITIONS),
        rule({"time": "${HOURS}", "argument.amount": 5, "from_script": True}),
    ],
)
def test_short_and_pasted_forms_are_valid_by_the_json_schema(right: dict[str, Any]) -> None:
    assert [error.message for error in validator().iter_errors(right)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"profile": "prod"},
        {"limits": {"no_such_limit": 1}},
        {"servers": {"a": {"command": 7}}},
        {"governance": {"rules": 3}},
        rule({"rol": "x"}),
        rule({"argument": "x"}),
        rule({"risk": "danger"}),
        rule({"risk": ["reads", "danger"]}),
        rule({"time": "8-18"}),
        rule({"kind": {"not": "tol"}}),
        rule({"from_script": "perhaps"}),
        rule({"role": {"glob": "x"}}),
        rule({"role": {"not": "x", "one_of": ["y"]}}),
        rule({"role": []}),
        rule({"role": None}),
        rule({"argument.a": {"one_of": "x"}}),
    ],
)
def test_mistakes_are_invalid_by_the_json_schema(wrong: dict[str, Any]) -> None:
    assert not validator().is_valid(wrong)


@pytest.mark.parametrize("when", CONDITIONS)
def test_examples_of_facts_load(when: dict[str, Any]) -> None:
    assert load_text(json.dumps(rule(when))).root.governance.rules[0].when == when


def test_every_key_has_a_description_in_the_json_schema() -> None:
    schema = configuration_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, value in section["properties"].items():
            assert "description" in value or key == "type", (section["title"], key)
