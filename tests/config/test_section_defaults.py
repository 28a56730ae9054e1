"""Absent sections are constructed without validation, which must give the same values as validating an empty section."""

from __future__ import annotations

import pytest

from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.servers import Server
from taskgate.config.sections import Section


def _all_sections(section: type[Section]) -> list[type[Section]]:
    return [section, *(below for child in section.__subclasses__() for below in _all_sections(child))]


OPTIONAL = [
    section
    for section in _all_sections(Section)
    if section is not Server
    and section.__module__.startswith("taskgate.")
    and section.model_fields
    and not any(field.is_required() for field in section.model_fields.values())
]


def test_most_sections_may_be_absent() -> None:
    assert len(OPTIONAL) > 20


@pytest.mark.parametrize("section", OPTIONAL, ids=lambda section: section.__name__)
def test_constructed_defaults_equal_validated_ones(section: type[Section]) -> None:
    assert section.model_construct() == section.model_validate({})


def test_constructed_defaults_of_nested_sections_equal_explicit_ones() -> None:
    absent = GatewayFile.model_validate({})
    sections: dict[str, dict[str, object]] = {
        name: {} for name, value in absent if isinstance(value, Section) and type(value) in OPTIONAL
    }
    assert len(sections) > 10
    assert GatewayFile.model_validate(sections) == absent
