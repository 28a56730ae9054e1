"""Convert JSON arguments to Cedar values, exactly or not at all.

Cedar has 64-bit integers, decimals with four places, strings, booleans, sets and records. If a value has no exact
counterpart, the call cannot be expressed and the engine rejects it: a policy must never evaluate a rounded number. A
member that is null is omitted, so a policy that reads it without `has` rejects the call. Keys that Cedar's JSON format
uses for entities and extension values are refused, because a caller could otherwise forge one.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
_DECIMAL_PLACES = 4
_RESERVED = frozenset({"__entity", "__extn", "__expr"})


class Inexpressible(ValueError):
    """An argument that Cedar cannot represent exactly. The message names its place, never its value."""


def cedar_record(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as a record in Cedar's JSON format."""
    return _record(arguments, "arguments")


def _value(value: Any, path: str) -> Any:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if LONG_MIN <= value <= LONG_MAX:
            return value
        raise Inexpressible(f"{path} is an integer beyond 64 bits")
    if isinstance(value, float):
        return _decimal(value, path)
    if isinstance(value, Mapping):
        return _record(value, path)
    if isinstance(value, list):
        return [_value(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise Inexpressible(f"{path} is null inside a list" if value is None else f"{path} is not a JSON value")


def _record(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    reserved = _RESERVED.intersection(value)
    if reserved:
        raise Inexpressible(f"{path} has the reserved key {min(reserved)}")
    return {key: _value(item, f"{path}.{key}") for key, item in value.items() if item is not None}


def _decimal(value: float, path: str) -> dict[str, Any]:
    # The shortest text that parses to this float is what the caller wrote, or an equal number.
    exact = Decimal(repr(value))
    if not exact.is_finite():
        raise Inexpressible(f"{path} is not a finite number")
    scaled = exact.scaleb(_DECIMAL_PLACES)
    if scaled != scaled.to_integral_value() or not LONG_MIN <= scaled <= LONG_MAX:
        raise Inexpressible(f"{path} does not fit a decimal with {_DECIMAL_PLACES} places")
    return {"__extn": {"fn": "decimal", "arg": f"{exact:.{_DECIMAL_PLACES}f}"}}
