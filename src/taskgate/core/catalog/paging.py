"""Pages of a merged list, by cursors that mean nothing to anyone but us.

A cursor names a place in one revision of one list. If the list has changed since, the cursor is refused instead of
skipping or repeating entries: the caller starts again and gets the new list whole.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from taskgate.core.errors import CallerError

MAX_CURSOR = 256

T = TypeVar("T")


class InvalidCursor(CallerError):
    """A cursor that we did not make, or that belongs to a list which is no more."""

    def __init__(self) -> None:
        super().__init__("invalid_cursor", "This cursor is not valid (any more). List again from the beginning.")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some entries, and the cursor for the next ones if there are any."""

    items: Sequence[T]
    next_cursor: str | None


def page(items: Sequence[T], cursor: Any, size: int, revision: str) -> Page[T]:
    """One page. `cursor` is whatever the caller sent (None for the first page); `revision` names this list."""
    start = 0 if cursor is None else _place(cursor, revision)
    if not 0 <= start <= len(items):
        raise InvalidCursor
    end = start + size
    return Page(items[start:end], _cursor(end, revision) if end < len(items) else None)


def _cursor(place: int, revision: str) -> str:
    return base64.urlsafe_b64encode(f"{place}.{_digest(revision)}".encode("ascii")).decode("ascii")


def _place(cursor: Any, revision: str) -> int:
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise InvalidCursor
    try:
        place, _, digest = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").partition(".")
    except (binascii.Error, ValueError):
        raise InvalidCursor from None
    if not place.isdigit() or digest != _digest(revision):
        raise InvalidCursor
    return int(place)


def _digest(revision: str) -> str:
    return hashlib.sha256(revision.encode("utf-8")).hexdigest()[:16]
