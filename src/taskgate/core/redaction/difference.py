"""The difference between two JSON values: arguments of two calls, or two tool definitions.

The result is a list of changes by path, in a stable order. Redacted values are compared but not shown: the approver
sees that a hidden value changed, not what it is. Rendering is up to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from taskgate.core.redaction.fields import NOTHING_HIDDEN, Redaction

MAX_CHANGES = 500
MAX_DEPTH = 100


class ChangeKind(StrEnum):
    """How a value differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class FieldChange(msgspec.Struct, frozen=True):
    """One difference. `before` and `after` are redacted; None if there is no value on that side."""

    path: str
    kind: ChangeKind
    before: Any
    after: Any
    hidden: bool = False


class Difference(msgspec.Struct, frozen=True):
    """All changes, or the first of them if there are too many (`left_out` is the number of the others)."""

    changes: tuple[FieldChange, ...]
    left_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes)


def difference(before: Any, after: Any, redaction: Redaction = NOTHING_HIDDEN) -> Difference:
    """Return everything that differs between two JSON values, compared exactly: `1`, `1.0`, `true` and `"1"` all differ."""
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
        path=".".join(path),
        kind=kind,
        before=None if before is None else before.value,
        after=None if after is None else after.value,
        hidden=hidden,
    )
