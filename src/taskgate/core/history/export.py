"""Rows of history as values of the JSON API, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

from taskgate.core.history.row import HistoryRow
from taskgate.core.timestamps import iso
from taskgate.core.usage import csv_safe

COLUMNS: Final = (
    "id",
    "kind",
    "outcome",
    "ended_at",
    "accepted_at",
    "sent_at",
    "duration_ms",
    "caller",
    "tenant",
    "scope",
    "server",
    "tool",
    "client",
    "generation",
    "error_type",
    "rule",
    "reason",
    "executed",
    "attempts",
    "asked",
    "approval_id",
    "approved_by",
    "size_in",
    "size_out",
    "digest",
    "trace",
    "parent",
    "count",
)


def as_json(row: HistoryRow) -> dict[str, Any]:
    """Field names are stable: fields are added, never removed."""
    shown: dict[str, Any] = {}
    for name in COLUMNS:
        if name.endswith("_at"):
            ms = getattr(row, f"{name[:-3]}_ms")
            shown[name] = iso(ms) if ms else None
        else:
            shown[name] = getattr(row, name)
    return shown


def csv_header() -> str:
    return _line(COLUMNS)


def csv_lines(rows: Iterable[HistoryRow]) -> str:
    """Text that a spreadsheet would read as a formula is prefixed with a quote."""
    return "".join(csv_line(as_json(row)) for row in rows)


def csv_line(row: Mapping[str, Any]) -> str:
    """A line of CSV from the JSON of a row."""
    return _line(_cell(row[name]) for name in COLUMNS)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return csv_safe(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _line(cells: Iterable[str]) -> str:
    # In quotes, a cell is not divided by programs that expect other separators, such as semicolons.
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n", quoting=csv.QUOTE_ALL).writerow(cells)
    return out.getvalue()
