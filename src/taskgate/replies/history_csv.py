"""Calls that have ended as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, Final

from taskgate.core.usage import csv_safe
from taskgate.replies.history import HistoryEntry

_FIRST: Final = (
    "id",
    "kind",
    "outcome",
    "ended_at",
    "accepted_at",
    "sent_at",
    "duration_ms",
    "caller",
    "tenant",
)
COLUMNS: Final = (*_FIRST, *(name for name in HistoryEntry.__struct_fields__ if name not in _FIRST))
"""Columns are added at the end, never removed."""


def csv_header() -> str:
    return _line(COLUMNS)


def csv_lines(rows: Iterable[HistoryEntry]) -> str:
    """Text that a spreadsheet would read as a formula is prefixed with a quote."""
    return "".join(_line(_cell(getattr(row, name)) for name in COLUMNS) for row in rows)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return csv_safe(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _line(cells: Iterable[str]) -> str:
    # In quotes, a cell is not divided by programs that expect other separators, such as semicolons.
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n", quoting=csv.QUOTE_ALL).writerow(cells)
    return out.getvalue()
