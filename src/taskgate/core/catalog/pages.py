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


def page(items: Sequence[bytes], cursor: Any, size: int) -> Page:
    """Return one page of encoded entries. `cursor` is the caller's value, None for the first page."""
    start = 0 if cursor is None else _place(cursor, items)
    end = start + size
    return Page(items[start:end], _cursor(end, items) if end < len(items) else None)


def _cursor(place: int, items: Sequence[bytes]) -> str:
    return base64.urlsafe_b64encode(f"{place}.{_digest(items)}".encode("ascii")).decode("ascii")


def _place(cursor: Any, items: Sequence[bytes]) -> int:
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise InvalidCursor
    try:
        place, _, digest = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").partition(".")
    except (binascii.Error, ValueError):
        raise InvalidCursor from None
    if not place.isdigit() or int(place) > len(items) or digest != _digest(items):
        raise InvalidCursor
    return int(place)


def _digest(items: Sequence[bytes]) -> str:
    return hashlib.sha256(b",".join(items)).hexdigest()[:16]
