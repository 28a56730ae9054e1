"""The schema for editors: it accepts every file that loads, and reports common mistakes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from taskgate.config.explain import example
from taskgate.config.json_schema import configuration_schema

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "examples").glob("*.yaml")), ROOT / "tests/config/complete/taskgate.yaml"]


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
    ],
)
def test_mistakes_are_invalid_by_the_json_schema(wrong: dict[str, Any]) -> None:
    assert not validator().is_valid(wrong)


def test_every_key_has_a_description_in_the_json_schema() -> None:
    schema = configuration_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, value in section["properties"].items():
            assert "description" in value or key == "type", (section["title"], key)
