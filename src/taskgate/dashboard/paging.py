"""Pages of a list that is held in memory: `?page=2`, with links to the neighbours and the place in the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from taskgate.dashboard.web import PAGE, with_query

Row = TypeVar("Row")


class PagedRows(msgspec.Struct, Generic[Row], frozen=True, kw_only=True):
    rows: Sequence[Row]
    first: int
    last: int
    total: int
    before: str | None
    """The address of the previous page."""
    after: str | None


def paged(rows: Sequence[Row], given: str | None, path: str, query: Mapping[str, str | None]) -> PagedRows[Row]:
    """The page that the address names, or the nearest one that exists."""
    requested = int(given) if given and given.isascii() and given.isdigit() and len(given) < 7 else 1
    pages = max(1, -(-len(rows) // PAGE))
    number = min(max(1, requested), pages)
    first = (number - 1) * PAGE
    shown = rows[first : first + PAGE]
    return PagedRows(
        rows=shown,
        first=first + 1 if shown else 0,
        last=first + len(shown),
        total=len(rows),
        before=with_query(path, query, page=str(number - 1)) if number > 1 else None,
        after=with_query(path, query, page=str(number + 1)) if number < pages else None,
    )
