"""Values as people get to see them: what is hidden from them and from logs, and what changed between two of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from taskgate.core.governance.digest import fold
from taskgate.core.patterns import Glob, PatternError

HIDDEN = "[hidden]"
_ANY_DEPTH = None
_Segment = Glob | None
_Place = tuple[int, int]
_Places = frozenset[_Place]
_NOWHERE: _Places = frozenset()


@dataclass(frozen=True, slots=True)
class Redacted:
    """A copy safe to show, and the paths of what is missing from it."""

    value: Any
    hidden: tuple[str, ...]


class Redaction:
    """Compiled `redact_fields`. A place is a path and how many of its segments lie behind; what follows it is worked out once."""

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
        """Copy `value` with every matching field replaced by `[hidden]`. The original is never changed.

        `under` is the path (keys from the top) at which the value sits in its document.
        """
        if not self._paths:
            return Redacted(value, ())
        places = self._reach(under)
        if self._done(places):
            return Redacted(HIDDEN, ("",))
        walk = _Walk([], {})
        return Redacted(self._copy(value, places, "", walk), tuple(walk.hidden))

    def _reach(self, path: Iterable[str]) -> _Places:
        places: _Places = frozenset().union(*(self._settled(index, 0) for index in range(len(self._paths))))
        for key in path:
            # A number may be a place in a list, and lists are walked through.
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
        """Standing before `**` also means standing behind it."""
        places = {(path, at)}
        while at < len(self._paths[path]) and self._paths[path][at] is _ANY_DEPTH:
            at += 1
            places.add((path, at))
        return frozenset(places)

    def _done(self, places: _Places) -> bool:
        return not places.isdisjoint(self._ends)


@dataclass(frozen=True, slots=True)
class _Walk:
    """One redaction under way: what was hidden, and where keys led that came before. Documents repeat their keys."""

    hidden: list[str]
    steps: dict[tuple[_Places, str], _Places]


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


SHORTEST_IN_TEXT = 6
"""Shorter values are hidden only where they stand alone: within a text they cannot be told from its own words."""
LONGEST_NEEDLE = 24
"""Messages cut what they quote, so this much of the beginning of a longer value gives it away."""
_SECRET_NAMES = (
    *("secret", "token", "password", "passwd", "passphrase", "key", "authorization", "credential", "cookie", "bearer"),
    *("private", "sha256"),
)
_SECRET_MAPS = frozenset({"headers", "env"})


class SecretValues:
    """What a configuration holds that nobody may see: values that came from references, and fields with secret names."""

    __slots__ = ("_needles", "values")

    def __init__(self, values: Iterable[str]) -> None:
        self.values = frozenset(value for value in values if value)
        forms = {form for value in self.values for form in (value, json.dumps(value)[1:-1], quote(value, safe=""))}
        # The longest first, so that a value that is part of another does not leave the rest of that one standing.
        long_enough = (form for form in forms if len(form) >= SHORTEST_IN_TEXT)
        self._needles = tuple(sorted(long_enough, key=lambda form: (-len(form), form)))

    def text(self, text: str) -> str:
        """The text without any of the values, or the beginning of one that was cut."""
        for needle in self._needles:
            text = _without(text, needle)
        return text

    def shown(self, value: Any, name: str = "") -> Any:
        """Plain data, fit to be shown, of a configuration or a part of it that stands under the key `name`."""
        if isinstance(value, Mapping):
            hide_all = name in _SECRET_MAPS
            return {str(key): HIDDEN if hide_all else self.shown(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.shown(item, name) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if str(value) in self.values:
            return HIDDEN
        if isinstance(value, int | float):
            return value
        return HIDDEN if has_secret_name(name) else self.text(_without_user(str(value)))


def has_secret_name(name: str) -> bool:
    """Whether a field of this name is likely to hold a secret."""
    folded = fold(name)
    return any(word in folded for word in _SECRET_NAMES)


def _without(text: str, needle: str) -> str:
    begin = needle[:LONGEST_NEEDLE]
    at = text.find(begin)
    while at >= 0:
        end = at + len(begin)
        while end < len(text) and end - at < len(needle) and text[end] == needle[end - at]:
            end += 1
        text = text[:at] + HIDDEN + text[end:]
        at = text.find(begin, at + len(HIDDEN))
    return text


def _without_user(text: str) -> str:
    """Addresses may hold a password between the scheme and the host."""
    scheme, mark, rest = text.partition("://")
    before, at, after = rest.partition("@")
    return f"{scheme}://{HIDDEN}@{after}" if mark and at and "/" not in before else text


# What changed between two JSON values, said so that a person can judge it: two calls' arguments, or two tool
# definitions.
#
# The answer is a list of changes by path, in a stable order. Values that redaction hides are compared but not shown:
# the approver learns that a hidden value changed, never what it is. No text diff and no rendering happens here.

MAX_CHANGES = 500
MAX_DEPTH = 100


class ChangeKind(StrEnum):
    """How one place differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One place that differs. `before` and `after` are redacted; None where there is nothing on that side."""

    path: str
    kind: ChangeKind
    before: Any
    after: Any
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """All changes, or the first of them when there are too many to show (`left_out` counts the rest)."""

    changes: tuple[FieldChange, ...]
    left_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes)


def difference(before: Any, after: Any, redaction: Redaction = NOTHING_HIDDEN) -> Difference:
    """Everything that differs between two JSON values, as exact values: `1`, `1.0`, `true` and `"1"` all differ."""
    changes: list[FieldChange] = []
    left_out = 0
    for path, kind, old, new in _walk((), before, after):
        if len(changes) < MAX_CHANGES:
            changes.append(_shown(path, kind, old, new, redaction))
        else:
            left_out += 1
    return Difference(tuple(changes), left_out)


_Found = tuple[tuple[str, ...], ChangeKind, Any, Any]


def _walk(path: tuple[str, ...], before: Any, after: Any) -> Iterator[_Found]:
    deep = len(path) >= MAX_DEPTH
    if isinstance(before, dict) and isinstance(after, dict) and not deep:
        yield from _walk_members(path, before, after)
    elif isinstance(before, list) and isinstance(after, list) and not deep:
        yield from _walk_members(path, _by_index(before), _by_index(after))
    elif type(before) is not type(after) or before != after:
        yield path, ChangeKind.CHANGED, before, after


def _walk_members(path: tuple[str, ...], before: dict[str, Any], after: dict[str, Any]) -> Iterator[_Found]:
    for key in (*before, *(key for key in after if key not in before)):
        inner = (*path, key)
        if key not in before:
            yield inner, ChangeKind.ADDED, None, after[key]
        elif key not in after:
            yield inner, ChangeKind.REMOVED, before[key], None
        else:
            yield from _walk(inner, before[key], after[key])


def _by_index(items: list[Any]) -> dict[str, Any]:
    return {str(index): item for index, item in enumerate(items)}


def _shown(path: tuple[str, ...], kind: ChangeKind, old: Any, new: Any, redaction: Redaction) -> FieldChange:
    before = None if kind is ChangeKind.ADDED else redaction.redact(old, under=path)
    after = None if kind is ChangeKind.REMOVED else redaction.redact(new, under=path)
    hidden = any(side is not None and side.hidden for side in (before, after))
    return FieldChange(
        ".".join(path), kind, None if before is None else before.value, None if after is None else after.value, hidden
    )
