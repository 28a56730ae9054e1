"""Pages of a merged list, with opaque cursors.

A cursor names an offset in one list, which is identified by a digest of all entries. If the list has changed, the
cursor is rejected instead of skipping or repeating entries: the caller starts again and gets the whole new list.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any

from taskgate.core.errors import CallerError
from taskgate.lazy_dataclass import dataclass

MAX_CURSOR = 256


class InvalidCursor(CallerError):
    """A cursor that the gateway did not issue, or that belongs to an outdated list."""

    def __init__(self) -> None:
        super().__init__(
            "invalid_cursor", "This cursor is not valid, or the list has changed. List again from the beginning."
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, and the cursor of the next page if there is one."""

    items: Sequence[bytes]
    next_cursor: str | None


class EntryList:
    """Encoded entries in order, with a digest of all of them that is computed at most once: for 10,000 tools it takes 15 ms."""

    __slots__ = ("_added", "_base", "_digest", "items")

    def __init__(self, items: Sequence[bytes]) -> None:
        self.items = items
        self._base: EntryList | None = None
        self._added: Sequence[bytes] = items
        self._digest = ""

    def plus(self, added: Sequence[bytes]) -> EntryList:
        """Return a list with further entries. Only these are added to the digest."""
        made = EntryList([*self.items, *added])
        made._base, made._added = self, added
        return made

    @property
    def digest(self) -> str:
        if not self._digest:
            before = self._base.digest.encode() if self._base is not None else b""
            self._digest = hashlib.sha256(b",".join((before, *self._added))).hexdigest()[:16]
        return self._digest


def page(entries: EntryList, cursor: Any, size: int) -> Page:
    """Return one page of encoded entries. `cursor` is the caller's value, None for the first page."""
    items = entries.items
    start = 0 if cursor is None else _place(cursor, entries)
    end = start + size
    return Page(items[start:end], _cursor(end, entries) if end < len(items) else None)


def _cursor(place: int, entries: EntryList) -> str:
    return base64.urlsafe_b64encode(f"{place}.{entries.digest}".encode("ascii")).decode("ascii")


def _place(cursor: Any, entries: EntryList) -> int:
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise InvalidCursor
    try:
        place, _, digest = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").partition(".")
    except (binascii.Error, ValueError):
        raise InvalidCursor from None
    if not place.isdigit() or int(place) > len(entries.items) or digest != entries.digest:
        raise InvalidCursor
    return int(place)
