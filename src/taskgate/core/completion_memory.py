"""What each caller has used before, as suggestions for the same caller only, and never what looks like a secret."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

_SECRET_NAME = re.compile(
    r"pass(?!ive|age|enger)|pwd|secret|token|credential|auth|api_?key|access_?key|private|signature|cookie|session|bearer|"
    r"\bpin\b|\botp\b|\bcvv\b|\bcvc\b|\bssn\b|\biban\b|card_?n|account_?n|\bkey\b",
    re.IGNORECASE,
)
_SECRET_SHAPE = re.compile(
    r"^(sk|pk|rk)[-_]\w{8,}|^gh[pousr]_\w{10,}|^github_pat_|^glpat-|^xox[abeprs]-|^AKIA[0-9A-Z]{12,}|^AIza[\w-]{20,}|^ya29\.|"
    r"^eyJ[\w-]{8,}\.|^(Bearer|Basic|Token)\s|-----BEGIN|://[^/\s]*:[^/\s]*@|[?&](token|key|sig|signature|password|secret)=",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[_\-\s]+|(?<=[a-z])(?=[A-Z])")
_DIGITS = re.compile(r"[\d\s-]{12,}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F-]+")
_CASE_TURN = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[a-z])")
_DENSE = re.compile(r"[A-Za-z0-9+/=_-]{20,}")


def looks_secret(argument: str, value: str) -> bool:
    """Whether a value, or the name of the argument it was given for, speaks of a secret."""
    return (
        _SECRET_NAME.search(_WORDS.sub(" ", argument)) is not None
        or _SECRET_NAME.search(argument) is not None
        or _SECRET_SHAPE.search(value) is not None
        or _looks_random(value)
        or _looks_like_a_card(value)
    )


def worth_learning(argument: str, value: str) -> bool:
    """Whether a value may be remembered: short, on one line, visible, and not secret-looking."""
    return (
        0 < len(value) <= MAX_LEARNED
        and value.isprintable()
        and not value.isspace()
        and not looks_secret(argument, value)
    )


def _looks_random(value: str) -> bool:
    """Long runs without spaces that mix letters and digits, or capitals and small letters, as no word does."""
    for run in _DENSE.findall(value):
        if len(run) >= 32 and _HEXADECIMAL.fullmatch(run):
            return True
        parts = re.split(r"[-_/+=]", run)
        mixed = sum(len(part) for part in parts if not part.isdigit() and not part.isalpha())
        turns = len(_CASE_TURN.findall(run))
        if mixed >= 12 or turns * 3 > len(run):
            return True
    return False


def _looks_like_a_card(value: str) -> bool:
    for found in _DIGITS.findall(value):
        digits = [int(c) for c in found if c.isdigit()]
        if 13 <= len(digits) <= 19:
            doubled = [d if i % 2 == 0 else (d * 2 - 9 if d > 4 else d * 2) for i, d in enumerate(reversed(digits))]
            if sum(doubled) % 10 == 0:
                return True
    return False


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
