"""Redaction of JSON values by `redact_fields`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from taskgate.core.globs import Glob, PatternError
from taskgate.core.text.confusables import fold

HIDDEN = "[hidden]"
_ANY_DEPTH = None
_Segment = Glob | None
_Place = tuple[int, int]
_Places = frozenset[_Place]
_NOWHERE: _Places = frozenset()


class Redacted(msgspec.Struct, frozen=True):
    """A copy that is safe to show, and the paths of the hidden values."""

    value: Any
    hidden: tuple[str, ...]


class Redaction:
    """Compiled `redact_fields`. A place is a path and the number of its matched segments; the places that follow it are
    precomputed.
    """

    __slots__ = ("_ends", "_follows", "_paths")

    def __init__(self, paths: tuple[tuple[_Segment, ...], ...]) -> None:
        self._paths = paths
        self._ends = frozenset((index, len(path)) for index, path in enumerate(paths))
        self._follows = {
            (index, at): (segment, self._settled(index, at if segment is _ANY_DEPTH else at + 1))
            for index, path in enumerate(paths)
            for at, segment in enumerate(path)
        }

    def redact(self, value: Any, *, under: Iterable[str] = ()) -> Redacted:
        """Return a copy of `value` with every matching field replaced by `[hidden]`.

        `under` is the path (keys from the top) of the value in its document.
        """
        if not self._paths:
            return Redacted(value, ())
        places = self._reach(under)
        if self._done(places):
            return Redacted(HIDDEN, ("",))
        walk = _Walk([], {})
        return Redacted(self._copy(value, places, "", walk), tuple(walk.hidden))

    @property
    def hides(self) -> bool:
        """Whether there is anything that it could hide."""
        return bool(self._paths)

    def hidden_values(self, value: Any) -> set[str]:
        """Return the texts and numbers, as text, that `redact` would hide."""
        found: set[str] = set()
        _collect_hidden(value, self.redact(value).value, found)
        return found

    def _reach(self, path: Iterable[str]) -> _Places:
        places: _Places = frozenset().union(*(self._settled(index, 0) for index in range(len(self._paths))))
        for key in path:
            # A number may be an index of a list, and lists are traversed.
            places = self._step(places, key) | (places if key.isdigit() else _NOWHERE)
            if self._done(places):
                break
        return places

    def _copy(self, value: Any, places: _Places, path: str, walk: _Walk) -> Any:
        if isinstance(value, dict):
            return {key: self._member(key, item, places, path, walk) for key, item in value.items()}
        if isinstance(value, list):
            return [self._member(str(i), item, places, path, walk, kept=places) for i, item in enumerate(value)]
        return value

    def _member(self, key: str, item: Any, places: _Places, path: str, walk: _Walk, *, kept: _Places = _NOWHERE) -> Any:
        inner = f"{path}.{key}" if path else key
        reached = walk.steps.get((places, key))
        if reached is None:
            reached = walk.steps[(places, key)] = self._step(places, key)
        reached = reached | kept if kept else reached
        if self._done(reached):
            walk.hidden.append(inner)
            return HIDDEN
        return self._copy(item, reached, inner, walk)

    def _step(self, places: _Places, key: str) -> _Places:
        whole = self._consume(places, key)
        if "." not in key:
            return whole
        stepped = places
        for part in key.split("."):
            stepped = self._consume(stepped, part)
        return whole | stepped

    def _consume(self, places: _Places, key: str) -> _Places:
        folded = fold(key)
        reached: set[_Place] = set()
        for place in places - self._ends:
            segment, follows = self._follows[place]
            if segment is _ANY_DEPTH or segment.matches(folded):
                reached |= follows
        return frozenset(reached)

    def _settled(self, path: int, at: int) -> _Places:
        """A place before `**` is also a place after it."""
        places = {(path, at)}
        while at < len(self._paths[path]) and self._paths[path][at] is _ANY_DEPTH:
            at += 1
            places.add((path, at))
        return frozenset(places)

    def _done(self, places: _Places) -> bool:
        return not places.isdisjoint(self._ends)


def together(redactions: Iterable[Redaction]) -> Redaction:
    """Return a redaction that hides what any of these hides."""
    return Redaction(tuple(path for each in redactions for path in each._paths))


def _collect_hidden(value: Any, shown: Any, found: set[str]) -> None:
    """Collect what `value` has where `shown` has `[hidden]`."""
    if isinstance(value, dict):
        for key, item in value.items():
            _collect_hidden(item, HIDDEN if shown == HIDDEN else shown[key], found)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _collect_hidden(item, HIDDEN if shown == HIDDEN else shown[number], found)
    elif shown == HIDDEN and value != HIDDEN and not isinstance(value, bool | None):
        found.add(str(value))


class _Walk(msgspec.Struct, frozen=True):
    """One redaction in progress: hidden paths, and cached steps, because documents repeat their keys."""

    hidden: list[str]
    steps: dict[tuple[_Places, str], _Places]


def compile_redaction(fields: Iterable[str]) -> Redaction:
    """Compile `redact_fields`. Raises PatternError for an empty segment or an invalid glob."""
    return Redaction(tuple(_compile_path(text) for text in fields))


def _compile_path(text: str) -> tuple[_Segment, ...]:
    segments = text.split(".")
    if not all(segments):
        raise PatternError(text, "has an empty path segment")
    if segments[-1] == "**":
        segments.append("*")
    return tuple(_ANY_DEPTH if part == "**" else Glob.compile(fold(part)) for part in segments)


NOTHING_HIDDEN = Redaction(())
