"""What replies are declared and filled with."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import asdict

R = TypeVar("R")

Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""ISO 8601 in UTC, as `core.timestamps.iso` writes it."""


def about(description: str) -> Meta:
    """The description of a field, which is part of the API."""
    return Meta(description=description)


def extended(kind: type[R], base: Struct, **more: Any) -> R:
    """A reply of this type with the fields of another one, and these."""
    return kind(**asdict(base), **more)
