"""Bind the arguments of a script's call to the parameters of the tool.

A script may pass the first arguments by position, in the order of the tool's stub. `timeout=SECONDS` limits the wait for the
call, unless the tool itself has a parameter of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_TIMEOUT: Final = "timeout"


class ArgumentError(Exception):
    """The arguments do not match the parameters. Nothing was sent."""


class BoundArguments(msgspec.Struct, frozen=True):
    """The arguments by name, and how long the script waits at most; None if the script does not limit it."""

    arguments: dict[str, Any]
    timeout_s: float | None


def bind_arguments(parameters: Sequence[str], positional: Sequence[Any], keywords: Mapping[str, Any]) -> BoundArguments:
    """Return the arguments by name. `parameters` are in the order of the stub (`stubs.parameter_order`). Raises ArgumentError."""
    if len(positional) > len(parameters):
        raise ArgumentError(f"takes {len(parameters)} positional arguments, but {len(positional)} were given")
    arguments = dict(zip(parameters, positional, strict=False))
    given = dict(keywords)
    timeout_s = None if _TIMEOUT in parameters else _seconds(given.pop(_TIMEOUT, None))
    twice = sorted(arguments.keys() & given.keys())
    if twice:
        raise ArgumentError(f"got {twice[0]!r} by position and by name")
    return BoundArguments(arguments | given, timeout_s)


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError("timeout is a positive number of seconds")
    return float(value)
