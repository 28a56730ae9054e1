"""Parses JSON objects in which every name is unique.

Two parsers that resolve duplicate names differently would accept different tokens.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    pass


MAX_DEPTH: Final = 24


class NotStrict(ValueError):
    """Not an object, not JSON, nested too deeply, or with a duplicate name."""


def strict_object(data: bytes) -> dict[str, Any]:
    """Raises NotStrict."""
    if _depth(data) > MAX_DEPTH:
        raise NotStrict("it is nested too deeply")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except NotStrict:
        raise
    except (ValueError, RecursionError):
        raise NotStrict("it is not JSON") from None
    if not isinstance(value, dict):
        raise NotStrict("it is not an object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotStrict("it has a duplicate name")
    return found


def _no_constant(_text: str) -> Any:
    raise NotStrict("it contains a number that JSON does not allow")


def _depth(data: bytes) -> int:
    """The nesting depth of brackets. Brackets inside strings count too, which can only overestimate."""
    depth = deepest = 0
    for byte in data:
        if byte in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"}]":
            depth -= 1
    return deepest
