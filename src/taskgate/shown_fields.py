"""The `__repr__` of a `msgspec.Struct` class with secrets: its other fields. By default a Struct shows all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def repr_without(*hidden: str) -> Callable[[Any], str]:
    """Return a `__repr__` that does not show these fields."""

    def representation(value: Any) -> str:
        shown = ", ".join(f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__ if name not in hidden)
        return f"{type(value).__qualname__}({shown})"

    return representation
