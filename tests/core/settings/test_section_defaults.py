"""Defaults are not validated when a section is created, so they must be values that a file could contain."""

from __future__ import annotations

import pytest

from taskgate.config.json_schema import section_schemas, spelled_default
from taskgate.config.load import load_text
from taskgate.config.problems import Mark
from taskgate.config.tree import Mapping, from_plain
from taskgate.config.validation import validated
from taskgate.core.settings.section import Section


def _all_sections(section: type[Section]) -> list[type[Section]]:
    return [section, *(below for child in section.__subclasses__() for below in _all_sections(child))]


SECTIONS = {each.__name__: each for each in _all_sections(Section) if each.__module__.startswith("taskgate.")}
OPTIONAL = [name for name, schema in section_schemas().items() if not schema["required"] and name != "Server"]


def test_most_sections_may_be_absent() -> None:
    assert len(OPTIONAL) > 20


@pytest.mark.parametrize("name", OPTIONAL)
def test_defaults_written_into_a_file_give_the_same_values(name: str) -> None:
    keys = section_schemas()[name]["properties"].items()
    written = {
        key: spelled_default(value)
        for key, value in keys
        if "default" in value and "$ref" not in value and value["default"] is not None
    }
    tree = from_plain(written, Mark("file", 1, 1))
    assert isinstance(tree, Mapping)
    assert validated(SECTIONS[name], tree) == (SECTIONS[name](), [])


def test_empty_sections_are_the_same_as_absent_ones() -> None:
    sections = [key for key, schema in section_schemas()["GatewayFile"]["properties"].items() if "$ref" in schema]
    assert len(sections) > 10
    assert load_text("\n".join(f"{key}: {{}}" for key in sections)).root == load_text("").root
