"""JSON Schemas from the types of replies: what may be missing, what may be null, and the values of enumerations."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from tests.docs.http_api import declared_routes

from taskgate.dashboard.openapi import schemas_of


class Kind(StrEnum):
    SECOND = "second"
    FIRST = "first"


class Inner(Struct, omit_defaults=True):
    """For contributors."""

    number: int
    text: str | None = None
    count: int = 1


class Outer(Struct):
    """For contributors."""

    kind: Annotated[Kind, Meta(description="what it is")]
    inner: list[Inner] | None
    version: int = 1
    missing: Annotated[str | UnsetType, Meta(description="only sometimes")] = UNSET


def components(*types: Any) -> dict[str, Any]:
    return dict(schemas_of(*types)[1])


def test_only_what_may_be_missing_is_not_required() -> None:
    found = components(Outer)
    assert found["Outer"]["required"] == ["kind", "inner", "version"]
    assert found["Inner"]["required"] == ["number"]
    assert found["Outer"]["properties"]["missing"] == {"type": "string", "description": "only sometimes"}


def test_field_that_is_omitted_instead_of_null_is_never_null() -> None:
    found = components(Outer)
    assert found["Inner"]["properties"]["text"] == {"type": "string"}
    assert {"type": "null"} in found["Outer"]["properties"]["inner"]["anyOf"]


def test_records_are_closed_and_enumerations_have_their_values_in_order() -> None:
    found = components(Outer)
    assert found["Kind"] == {"type": "string", "enum": ["second", "first"]}
    assert all(found[name]["additionalProperties"] is False for name in ("Outer", "Inner"))
    assert "For contributors" not in str(found)


def test_schema_of_every_route_has_a_plain_name() -> None:
    """Two types of the same name would get their modules as names."""
    names = components(*(route.answer for route in declared_routes()))
    assert [name for name in names if not name.isidentifier()] == []
