"""Usage per day: calls, errors, seconds, bytes and model costs of each principal and tool.

Rows are counted in memory and added up in the store. This module defines a row, how rows are added, and their CSV form.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taskgate.core.identity.identity import tenant_of

OTHERS: Final = "(others)"
"""Name for usage that was counted after the table of a period was full."""
GROUPS: Final = ("day", "principal", "tenant", "server", "tool")
AMOUNTS: Final = ("calls", "errors", "seconds", "bytes_in", "bytes_out", "cost")
_DAY_MS: Final = 86_400_000
_READ_AS_FORMULA: Final = re.compile(r"[\s\x00-\x1f\xad\u200b-\u200f\u2060\ufeff]*[=+\-@＝＋－＠]|[\t\r\n]")
"""Spreadsheets ignore spaces and invisible characters before a formula, and some read full-width signs as plain ones."""


class UsageRow(msgspec.Struct, frozen=True):
    """The usage of one tool by one principal on one day, in UTC. `cost` is in the currency of the price table."""

    day: Annotated[str, Meta(description="day; empty if not grouped by it, as the next four")]
    principal: Annotated[str, Meta(description="principal")]
    server: Annotated[str, Meta(description="server")]
    tool: Annotated[str, Meta(description="tool")]
    calls: Annotated[int, Meta(description="calls that reached a server")] = 0
    errors: Annotated[int, Meta(description="failed calls")] = 0
    seconds: Annotated[float, Meta(description="total duration")] = 0.0
    bytes_in: Annotated[int, Meta(description="bytes of arguments")] = 0
    bytes_out: Annotated[int, Meta(description="bytes of results")] = 0
    cost: Annotated[float, Meta(description="cost of models that answered sampling requests")] = 0.0
    tenant: Annotated[str, Meta(description="tenant")] = ""

    def plus(self, other: UsageRow) -> UsageRow:
        return msgspec.structs.replace(self, **{name: getattr(self, name) + getattr(other, name) for name in AMOUNTS})


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def days_before(at_ms: int, days: int) -> str:
    """Return the first of this many days, the last of which contains this time."""
    return day_of(max(0, at_ms - (days - 1) * _DAY_MS))


def with_tenant(row: UsageRow) -> UsageRow:
    return msgspec.structs.replace(row, tenant=tenant_of(row.principal))


def summed(rows: Iterable[UsageRow], by: tuple[str, ...]) -> list[UsageRow]:
    """Add up rows by some of `GROUPS`; the others are empty. Most calls first; days in order."""
    groups = _checked(by)
    found: dict[tuple[str, ...], UsageRow] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in groups)
        blank = {name: "" for name in GROUPS if name not in groups}
        kept = msgspec.structs.replace(row, **blank) if blank else row
        found[key] = found[key].plus(kept) if key in found else kept
    made = sorted(found.values(), key=lambda row: (-row.calls, row.principal, row.server, row.tool))
    return sorted(made, key=lambda row: row.day) if "day" in groups else made


def _checked(by: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in by if name not in GROUPS]
    if unknown or not by:
        raise ValueError(f"by is one or more of {', '.join(GROUPS)}, with commas between them")
    return tuple(dict.fromkeys(by))


def as_csv(rows: Iterable[UsageRow]) -> str:
    """Return CSV with a header line. Text that a spreadsheet would read as a formula is prefixed with a quote."""
    # Imported here: most gateways never export.
    import csv

    out = io.StringIO()
    # In quotes, a cell is not divided by programs that expect other separators, such as semicolons.
    writer = csv.writer(out, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow((*GROUPS, *AMOUNTS))
    for row in rows:
        groups = (csv_safe(getattr(row, name)) for name in GROUPS)
        writer.writerow((*groups, *(_number(getattr(row, name)) for name in AMOUNTS)))
    return out.getvalue()


def csv_safe(text: str) -> str:
    """Return a cell of CSV that no spreadsheet reads as a formula."""
    return f"'{text}" if _READ_AS_FORMULA.match(text) else text


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")
