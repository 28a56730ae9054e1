"""Sortable columns of a table, by the address: `?sort=name` is ascending, `?sort=-p99` descending.

Sorting needs no script, and the address of a sorted table can be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from taskgate.dashboard.web import with_query

Row = TypeVar("Row")


class TableColumn(msgspec.Struct, Generic[Row], frozen=True):
    """One column: its key in the address, its heading, and the value that its rows are sorted by."""

    key: str
    label: str
    value: Callable[[Row], Any] | None = None
    """None: the column cannot be sorted."""
    numeric: bool = False
    """Aligned right, and the first click sorts the largest value first."""
    optional: bool = False
    """Not shown on a phone."""


class HeadCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the table's head, for the template."""

    label: str
    href: str | None
    direction: str | None
    """`ascending` or `descending` where the table is sorted by this column."""
    numeric: bool
    optional: bool


def sorted_rows(rows: Iterable[Row], columns: Sequence[TableColumn[Row]], given: str | None) -> list[Row]:
    """The rows in the order that the address names; unchanged if it names no sortable column. Rows without a value are last."""
    listed = list(rows)
    found = _chosen(columns, given)
    if found is None:
        return listed
    column, descending = found
    assert column.value is not None
    known = [(value, row) for row in listed if (value := column.value(row)) is not None]
    absent = [row for row in listed if column.value(row) is None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in known] + absent


def head_cells(
    columns: Sequence[TableColumn[Row]], given: str | None, path: str, query: Mapping[str, str | None]
) -> list[HeadCell]:
    """The head of the table; each link keeps the filters of the address and sorts by its column, then in the other direction."""
    found = _chosen(columns, given)
    cells = []
    for column in columns:
        direction = None
        if found is not None and found[0] is column:
            direction = "descending" if found[1] else "ascending"
        down = direction == "ascending" if direction is not None else column.numeric
        link = with_query(path, query, sort=f"{'-' if down else ''}{column.key}") if column.value is not None else None
        cells.append(
            HeadCell(
                label=column.label,
                href=link,
                direction=direction,
                numeric=column.numeric,
                optional=column.optional,
            )
        )
    return cells


def _chosen(columns: Sequence[TableColumn[Row]], given: str | None) -> tuple[TableColumn[Row], bool] | None:
    key = (given or "").removeprefix("-")
    column = next((one for one in columns if one.key == key and one.value is not None), None)
    return (column, (given or "").startswith("-")) if column is not None else None
