"""Pages of a merged list, with opaque cursors.

A cursor names an offset in one list, which is identified by a digest of all entries. If the list has changed, the
cursor is rejected instead of skipping or repeating entries: the caller starts again and gets the whole new list.

The entries of a long list are encoded when their page is read. The digest is then one of what they are encoded from.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from taskgate.core.errors import CallerError

MAX_CURSOR = 256


class InvalidCursor(CallerError):
    """A cursor that the gateway did not issue, or that belongs to an outdated list."""

    def __init__(self) -> None:
        super().__init__(
            "invalid_cursor", "This cursor is not valid, or the list has changed. List again from the beginning."
        )


class Page(msgspec.Struct, frozen=True):
    """Some entries, and the cursor of the next page if there is one."""

    items: Sequence[bytes]
    next_cursor: str | None


class LateEntries:
    """Entries that are encoded when they are first read. `fingerprint` must differ if any of them does."""

    __slots__ = ("_encode", "_encoded", "fingerprint")

    def __init__(self, count: int, encode: Callable[[int], bytes], fingerprint: bytes) -> None:
        self._encode = encode
        self._encoded = [b""] * count
        """Empty where an entry was not read yet."""
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._encoded)

    def between(self, start: int, end: int) -> list[bytes]:
        found = self._encoded[start:end]
        if not all(found):
            for place, encoded in enumerate(found, start):
                if not encoded:
                    self._encoded[place] = self._encode(place)
            found = self._encoded[start:end]
        return found

    def are_encoded(self, start: int, end: int) -> bool:
        return all(self._encoded[start:end])


class EntryList:
    """Entries in order, with a digest of all of them that is computed at most once: for 10,000 tools it takes some milliseconds."""

    __slots__ = ("_base", "_digest", "_own")

    def __init__(self, own: Sequence[bytes] | LateEntries, base: EntryList | None = None) -> None:
        self._own = own
        self._base = base
        """A list whose entries come before the own ones."""
        self._digest = ""

    def __len__(self) -> int:
        return len(self._own) + (len(self._base) if self._base is not None else 0)

    def plus(self, added: Sequence[bytes]) -> EntryList:
        """Return a list with further entries. Only these are added to the digest."""
        return EntryList(added, self)

    def between(self, start: int, end: int) -> list[bytes]:
        """Return the encoded entries of a part of the list."""
        before = self._base.between(start, end) if self._base is not None else []
        begin, stop = self._own_part(start, end)
        own = self._own.between(begin, stop) if isinstance(self._own, LateEntries) else self._own[begin:stop]
        return [*before, *own]

    def _own_part(self, start: int, end: int) -> tuple[int, int]:
        first = len(self._base) if self._base is not None else 0
        return max(0, start - first), max(0, end - first)

    def are_encoded(self, start: int, end: int) -> bool:
        """Return whether `between` finds all these entries encoded."""
        if self._base is not None and not self._base.are_encoded(start, end):
            return False
        return not isinstance(self._own, LateEntries) or self._own.are_encoded(*self._own_part(start, end))

    @property
    def digest(self) -> str:
        if not self._digest:
            before = self._base.digest.encode() if self._base is not None else b""
            own = (self._own.fingerprint,) if isinstance(self._own, LateEntries) else self._own
            self._digest = hashlib.sha256(b",".join((before, *own))).hexdigest()[:16]
        return self._digest


def page(entries: EntryList, cursor: Any, size: int) -> Page:
    """Return one page of encoded entries. `cursor` is the caller's value, None for the first page."""
    return page_from(entries, start_of(entries, cursor), size)


def start_of(entries: EntryList, cursor: Any) -> int:
    """Return the place of the first entry of a page. Raises InvalidCursor."""
    return 0 if cursor is None else _place(cursor, entries)


def page_from(entries: EntryList, start: int, size: int) -> Page:
    end = start + size
    return Page(entries.between(start, end), _cursor(end, entries) if end < len(entries) else None)


def _cursor(place: int, entries: EntryList) -> str:
    return base64.urlsafe_b64encode(f"{place}.{entries.digest}".encode("ascii")).decode("ascii")


def _place(cursor: Any, entries: EntryList) -> int:
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise InvalidCursor
    try:
        place, _, digest = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").partition(".")
    except (binascii.Error, ValueError):
        raise InvalidCursor from None
    if not place.isdigit() or int(place) > len(entries) or digest != entries.digest:
        raise InvalidCursor
    return int(place)
