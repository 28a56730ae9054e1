"""Usage: totals and output formats."""

from __future__ import annotations

import csv
import io

import pytest

from taskgate.core.usage import UsageRow, as_csv, day_of, days_before, summed, with_tenant

ANN = UsageRow("2026-01-01", "acme/ann", "files", "read", 3, 1, 0.5, 10, 20, 0.0, "acme")
BOB = UsageRow("2026-01-02", "acme/bob", "files", "read", 5, 0, 1.5, 1, 2, 0.25, "acme")


def test_days_are_in_utc_and_count_back_inclusively() -> None:
    assert day_of(0) == "1970-01-01"
    assert day_of(86_400_000 - 1) == "1970-01-01"
    assert days_before(10 * 86_400_000, 1) == "1970-01-11"
    assert days_before(10 * 86_400_000, 3) == "1970-01-09"
    assert days_before(0, 5) == "1970-01-01"


def test_the_tenant_comes_from_the_principal() -> None:
    row = UsageRow("2026-01-01", "acme/ann", "files", "read")
    assert with_tenant(row).tenant == "acme"


def test_rows_are_summed_by_the_requested_dimensions() -> None:
    assert summed([ANN, BOB], ("server",)) == [UsageRow("", "", "files", "", 8, 1, 2.0, 11, 22, 0.25, "")]
    assert [row.principal for row in summed([ANN, BOB], ("principal",))] == ["acme/bob", "acme/ann"]
    assert [row.day for row in summed([BOB, ANN], ("day", "tenant"))] == ["2026-01-01", "2026-01-02"]
    whole = ("day", "principal", "tenant", "server", "tool")
    assert summed([ANN, ANN], whole)[0].calls == 6


@pytest.mark.parametrize("by", [(), ("nothing",)])
def test_unknown_dimensions_are_refused(by: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="day, principal"):
        summed([ANN], by)


@pytest.mark.parametrize("begins", ["=", "  +", "\u00a0-", "\u200b\ufeff@", "\t=", "\t", "\r", "\n", "＝", "－"])
def test_csv_cell_is_no_formula_whatever_precedes_it(begins: str) -> None:
    """A spreadsheet ignores spaces and invisible characters before a formula, and drops a tab or carriage return."""
    (_, row) = csv.reader(io.StringIO(as_csv([UsageRow("2026-01-01", f"{begins}1+1", "files", "read")]), newline=""))
    assert row[1] == f"'{begins}1+1"


def test_csv_cell_without_a_formula_is_unchanged() -> None:
    (_, row) = csv.reader(io.StringIO(as_csv([UsageRow("2026-01-01", "a=b", " files", "x;=1+1;y")]), newline=""))
    assert [row[1], row[3], row[4]] == ["a=b", " files", "x;=1+1;y"]


def test_csv_cells_of_usage_are_no_formulas() -> None:
    hostile = UsageRow("2026-01-01", '=cmd|"x"', "-files", 'a,"b"\r\n', 1, 0, 0.1)
    rows = list(csv.reader(io.StringIO(as_csv([hostile, ANN]), newline="")))
    assert rows[0][:3] == ["day", "principal", "tenant"]
    assert rows[1][:5] == ["2026-01-01", '\'=cmd|"x"', "", "'-files", 'a,"b"\r\n']
    assert rows[1][5:] == ["1", "0", "0.1", "0", "0", "0"]
    assert all(line[:1] == line[-1:] == '"' for line in as_csv([ANN, BOB]).splitlines())
    assert rows[2][5:] == ["3", "1", "0.5", "10", "20", "0"]
