"""Hiding values from people and logs without touching what is sent.

A field is a dotted path from the top of the arguments; each segment is a glob on one key, `**` stands for any depth.
Lists are walked through, so `cards.number` hides the number of every card, and `cards.*.number` does the same.
Matching ignores case and looks into keys that themselves hold dots, because hiding too much is a nuisance and hiding
too little is a leak. What was hidden is reported by path, so that an approver knows that there is something they do
not see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from taskgate.core.governance.confusable_names import fold
from taskgate.core.patterns import Glob, PatternError

HIDDEN = "[hidden]"
_ANY_DEPTH = None
_Segment = Glob | None
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Redacted:
    """A copy safe to show, and the paths of what is missing from it."""

    value: Any
    hidden: tuple[str, ...]


class Redaction:
    """Compiled `redact_fields`."""

    __slots__ = ("_paths",)

    def __init__(self, paths: tuple[tuple[_Segment, ...], ...]) -> None:
        self._paths = paths

    def redact(self, value: Any, *, under: Iterable[str] = ()) -> Redacted:
        """Copy `value` with every matching field replaced by `[hidden]`. The original is never changed.

        `under` is the path (keys from the top) at which the value sits in its document.
        """
        if not self._paths:
            return Redacted(value, ())
        hidden: list[str] = []
        places = self._reach(under)
        if self._done(places):
            return Redacted(HIDDEN, ("",))
        return Redacted(self._copy(value, places, "", hidden), tuple(hidden))

    def _reach(self, path: Iterable[str]) -> set[_Place]:
        places = self._settle({(index, 0) for index in range(len(self._paths))})
        for key in path:
            # A number may be a place in a list, and lists are walked through.
            places = self._step(places, key) | (places if key.isdigit() else set())
            if self._done(places):
                break
        return places

    def _copy(self, value: Any, places: set[_Place], path: str, hidden: list[str]) -> Any:
        if isinstance(value, dict):
            return {key: self._member(key, item, places, set(), path, hidden) for key, item in value.items()}
        if isinstance(value, list):
            return [self._member(str(i), item, places, places, path, hidden) for i, item in enumerate(value)]
        return value

    def _member(self, key: str, item: Any, places: set[_Place], kept: set[_Place], path: str, hidden: list[str]) -> Any:
        inner = f"{path}.{key}" if path else key
        reached = self._step(places, key) | kept
        if self._done(reached):
            hidden.append(inner)
            return HIDDEN
        return self._copy(item, reached, inner, hidden)

    def _step(self, places: set[_Place], key: str) -> set[_Place]:
        whole = self._consume(places, key)
        parts = key.split(".")
        if len(parts) == 1:
            return whole
        stepped = places
        for part in parts:
            stepped = self._consume(stepped, part)
        return whole | stepped

    def _consume(self, places: set[_Place], key: str) -> set[_Place]:
        folded = fold(key)
        reached: set[_Place] = set()
        for path, at in places:
            if at == len(self._paths[path]):
                continue
            segment = self._paths[path][at]
            if segment is _ANY_DEPTH:
                reached.add((path, at))
            elif segment.matches(folded):
                reached.add((path, at + 1))
        return self._settle(reached)

    def _settle(self, places: set[_Place]) -> set[_Place]:
        """Standing before `**` also means standing behind it."""
        settled = set(places)
        for path, at in places:
            behind = at
            while behind < len(self._paths[path]) and self._paths[path][behind] is _ANY_DEPTH:
                behind += 1
                settled.add((path, behind))
        return settled

    def _done(self, places: set[_Place]) -> bool:
        return any(at == len(self._paths[path]) for path, at in places)


def compile_redaction(fields: Iterable[str]) -> Redaction:
    """Compile `redact_fields`; an empty segment or a bad glob is a PatternError that quotes the entry."""
    return Redaction(tuple(_compile_path(text) for text in fields))


def _compile_path(text: str) -> tuple[_Segment, ...]:
    segments = text.split(".")
    if not all(segments):
        raise PatternError(text, "has an empty path segment")
    if segments[-1] == "**":
        segments.append("*")
    return tuple(_ANY_DEPTH if part == "**" else Glob.compile(fold(part)) for part in segments)


NOTHING_HIDDEN = Redaction(())
