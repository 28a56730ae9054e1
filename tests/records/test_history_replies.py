"""Calls that have ended as replies of the API: their fields, and CSV."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind
from taskgate.replies.history import HistoryEntry, history_entry
from taskgate.replies.history_csv import COLUMNS, csv_header, csv_lines

EXPORTED = [
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
]
"""Columns as of version 1.0. Others may follow them."""


def an_entry(**changes: Any) -> HistoryEntry:
    fields: dict[str, Any] = {
        "kind": RowKind.CALL,
        "outcome": CallOutcome.OK,
        "number": 7,
        "caller": "acme/ann",
        "tool": "read",
        "accepted_ms": 1_000,
        "ended_ms": 3_000,
        **changes,
    }
    return history_entry(HistoryRow(**fields))


def test_entry_has_the_times_of_its_row_as_text() -> None:
    shown = msgspec.to_builtins(an_entry())
    assert (shown["sent_at"], shown["ended_at"]) == (None, "1970-01-01T00:00:03.000Z")
    assert (shown["tenant"], shown["duration_ms"], shown["id"]) == ("acme", 2_000, "hr_0000000000000007")


def test_csv_has_the_columns_of_earlier_versions_first() -> None:
    assert list(COLUMNS[: len(EXPORTED)]) == EXPORTED
    assert set(COLUMNS) == set(msgspec.to_builtins(an_entry()))


@pytest.mark.parametrize(
    ("changes", "why", "took_ms"),
    [
        ({}, "", 2_000),
        ({"error_type": "denied"}, "", 2_000),
        ({"outcome": CallOutcome.FAILED, "error_type": "upstream_timeout", "rule": "r"}, "upstream_timeout", 2_000),
        ({"outcome": CallOutcome.DENIED, "error_type": "policy_denied", "rule": "r"}, "policy_denied · r", 2_000),
        ({"outcome": CallOutcome.DENIED, "kind": RowKind.DENIAL, "reason": "no"}, "no", None),
        ({"accepted_ms": 0}, "", None),
    ],
)
def test_entry_states_why_it_ended_and_how_long_it_took(changes: dict[str, Any], why: str, took_ms: int | None) -> None:
    entry = an_entry(**changes)
    assert (entry.why, entry.took_ms) == (why, took_ms)


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "  =", "＝"])
def test_csv_cells_are_no_formulas(begins: str) -> None:
    row = an_entry(tool=f"{begins}cmd('x')")
    assert f"\"'{begins}cmd('x')\"" in csv_lines([row])
    assert csv_lines([row]).count(",") == csv_header().count(",")


@pytest.mark.parametrize("name", ["x;=1+1;y", 'x";=1+1;"y', "a b", "x=1"])
def test_csv_cells_are_in_quotes_for_every_separator(name: str) -> None:
    """Programs that expect semicolons would otherwise divide a cell, and read its second part as a formula."""
    line = csv_lines([an_entry(tool=name)])
    assert '"' + name.replace('"', '""') + '"' in line
    assert line.startswith('"')
    assert line.endswith('"\r\n')
    assert line.count('","') == csv_header().count('","') == len(COLUMNS) - 1
