"""Values that each caller used before, as suggestions for the same caller only.

Values that look like secrets are never stored. Everything is bounded; the least recently used is dropped first. The
object has no clock and no lock: the caller passes the time, and one event loop owns it. It is not persistent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskgate.core.redaction.looks_secret import looks_secret

# Whether a value looks like a secret. Asked before a value is remembered as a suggestion; when in doubt, it is not
# remembered.
#
# This is a guard for a convenience, not a classifier: it may take an odd file name for a key, and that costs a
# suggestion. It must not take a key for a file name.
#
# What each caller has used before, as suggestions for the same caller only.
#
# Values that look like secrets are never taken up. Everything is bounded, and the least recently used goes first. A
# plain object without clock or lock: it is told the time, and one event loop owns it. It is not stored: a restart
# forgets.

MAX_LEARNED = 256


def worth_learning(argument: str, value: str) -> bool:
    """Whether a value may be remembered: short, on one line, visible, and not secret-looking."""
    return (
        0 < len(value) <= MAX_LEARNED
        and value.isprintable()
        and not value.isspace()
        and not looks_secret(argument, value)
    )


MAX_CALLERS = 2000
MAX_PLACES = 500
MAX_VALUES = 200


@dataclass(frozen=True, slots=True)
class CompletionPlace:
    """Where a value was used: an argument of a tool, prompt or resource template of one server."""

    server: str
    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class Usage:
    """How often and when a value was used last, and which other arguments it came with then."""

    times: int
    last: float
    beside: frozenset[tuple[str, str]] = frozenset()


_Places = OrderedDict[CompletionPlace, OrderedDict[str, Usage]]


@dataclass(slots=True)
class UsageMemory:
    """The memory of all callers. Switched off, it learns nothing and forgets what it knew."""

    enabled: bool = True
    _callers: OrderedDict[str, _Places] = field(default_factory=OrderedDict)

    def learn(self, caller: str, server: str, name: str, arguments: Mapping[str, Any], now: float) -> None:
        """Remember the plain values of one call's arguments."""
        if not self.enabled:
            return
        plain = _learnable(arguments)
        beside = frozenset(plain.items())
        for argument, value in plain.items():
            self._note(caller, CompletionPlace(server, name, argument), value, beside - {(argument, value)}, now)

    def used(self, caller: str, place: CompletionPlace) -> Mapping[str, Usage]:
        """The values this caller used there."""
        return self._callers.get(caller, OrderedDict()).get(place, {})

    def forget(self, caller: str | None = None) -> None:
        """Forget one caller, or everyone."""
        if caller is None:
            self._callers.clear()
        else:
            self._callers.pop(caller, None)

    def switch(self, enabled: bool) -> None:
        """Switch learning on or off."""
        self.enabled = enabled
        if not enabled:
            self.forget()

    def _note(
        self, caller: str, place: CompletionPlace, value: str, beside: frozenset[tuple[str, str]], now: float
    ) -> None:
        places = _freshest(self._callers, caller, OrderedDict(), MAX_CALLERS)
        values = _freshest(places, place, OrderedDict(), MAX_PLACES)
        before = values.get(value)
        _freshest(values, value, Usage(0, now), MAX_VALUES)
        values[value] = Usage((before.times if before else 0) + 1, now, beside)


def _freshest(table: OrderedDict[Any, Any], key: Any, fresh: Any, limit: int) -> Any:
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
