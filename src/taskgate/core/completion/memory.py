"""Values that each caller used before, as suggestions for the same caller only.

Values that look like secrets are never stored. Everything is bounded; the least recently used is dropped first. The
object has no clock and no lock: the caller passes the time, and one event loop owns it. It is not persistent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from taskgate.core.redaction.looks_secret import looks_secret

MAX_LEARNED = 256


def worth_learning(argument: str, value: str) -> bool:
    """Whether a value may be stored: short, one line, visible, and not like a secret."""
    return (
        0 < len(value) <= MAX_LEARNED
        and value.isprintable()
        and not value.isspace()
        and not looks_secret(argument, value)
    )


MAX_CALLERS = 2000
MAX_PLACES = 500
MAX_VALUES = 200


class CompletionPlace(msgspec.Struct, frozen=True):
    """Where a value was used: an argument of a tool, prompt or resource template of one server."""

    server: str
    name: str
    argument: str


class Usage(msgspec.Struct, frozen=True):
    """How often and when a value was last used, and with which other arguments."""

    times: int
    last: float
    beside: frozenset[tuple[str, str]] = frozenset()


_Places = OrderedDict[CompletionPlace, OrderedDict[str, Usage]]


class UsageMemory:
    """The values of all callers. If disabled, it stores nothing and drops what it had."""

    def __init__(self) -> None:
        self.enabled = True
        self._callers: OrderedDict[str, _Places] = OrderedDict()

    def learn(self, caller: str, server: str, name: str, arguments: Mapping[str, Any], now: float) -> None:
        """Store the plain values of the arguments of one call."""
        if not self.enabled:
            return
        plain = _learnable(arguments)
        beside = frozenset(plain.items())
        for argument, value in plain.items():
            self._note(caller, CompletionPlace(server, name, argument), value, beside - {(argument, value)}, now)

    def used(self, caller: str, place: CompletionPlace) -> Mapping[str, Usage]:
        """Return the values that this caller used there."""
        return self._callers.get(caller, OrderedDict()).get(place, {})

    def forget(self, caller: str | None = None) -> None:
        """Drop the values of one caller, or of all."""
        if caller is None:
            self._callers.clear()
        else:
            self._callers.pop(caller, None)

    def switch(self, enabled: bool) -> None:
        """Enable or disable."""
        self.enabled = enabled
        if not enabled:
            self.forget()

    def _note(
        self, caller: str, place: CompletionPlace, value: str, beside: frozenset[tuple[str, str]], now: float
    ) -> None:
        places = _most_recent(self._callers, caller, OrderedDict(), MAX_CALLERS)
        values = _most_recent(places, place, OrderedDict(), MAX_PLACES)
        before = values.get(value)
        _most_recent(values, value, Usage(0, now), MAX_VALUES)
        values[value] = Usage((before.times if before else 0) + 1, now, beside)


def _most_recent(table: OrderedDict[Any, Any], key: Any, fresh: Any, limit: int) -> Any:
    found = table.setdefault(key, fresh)
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)
    return found


def _learnable(arguments: Mapping[str, Any]) -> dict[str, str]:
    plain: dict[str, str] = {}
    for argument, value in list(arguments.items())[:64]:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and len(argument) <= 128 and worth_learning(argument, value):
            plain[argument] = value
    return plain
