"""Bars: stacked by outcome over time, and histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from taskgate.dashboard import units
from taskgate.dashboard.charts.axis import round_top
from taskgate.dashboard.charts.figure import HEIGHT, WIDTH, Column, Row, Series, figure, hover
from taskgate.dashboard.charts.markup import number

MIN_HEIGHT: Final = 1.5
"""A value above zero is visible beside one that is a thousand times as large."""
_GAP: Final = 0.2


def stacked_bars(
    title: str,
    series: Sequence[Series],
    columns: Sequence[Column],
    *,
    summary: str = "",
    show: Callable[[float | None], str] = units.count,
    table_head: str = "From",
) -> Markup:
    """A bar for each column, with the first series at the bottom. A column without a value has no bar and no row in the table."""
    top = round_top(max((sum(_known(column)) for column in columns), default=0), whole=True)
    drawn, paths = [], ["" for _ in series]
    for place, column in enumerate(columns):
        numbers = ", ".join(
            f"{show(value)} {one.label}" for one, value in zip(series, column.values, strict=True) if value
        )
        drawn.append(hover(place, len(columns), column, numbers or "none"))
        for one, bar in enumerate(_bars(place, len(columns), column, top)):
            paths[one] += bar
    # One path for all bars of a series: an element for each bar would be a third of a page with charts.
    drawn += [f'<path class="{one.tone}" d="{path}"/>' for one, path in zip(series, paths, strict=True) if path]
    rows = [Row(column, tuple(show(value) for value in column.values)) for column in columns if any(_known(column))]
    return figure(
        title,
        series,
        columns,
        "".join(drawn),
        rows,
        top=show(top),
        middle=show(top / 2),
        summary=summary,
        table_head=table_head,
    )


def histogram(title: str, columns: Sequence[Column], *, label: str = "calls", summary: str = "") -> Markup:
    """How often values fall in each column; columns are ranges such as `10 to 20 ms`."""
    return stacked_bars(title, (Series(label, "t-run"),), columns, summary=summary, table_head="Range")


def _known(column: Column) -> list[float]:
    return [value for value in column.values if value is not None]


def _bars(place: int, count: int, column: Column, top: float) -> list[str]:
    """The bar of each series as a part of a path; empty for no value."""
    step = WIDTH / max(1, count)
    x, width = place * step + step * _GAP / 2, step * (1 - _GAP)
    base, drawn = float(HEIGHT), []
    for value in column.values:
        if not value:
            drawn.append("")
            continue
        height = min(base, max(MIN_HEIGHT, value / top * HEIGHT))
        base -= height
        drawn.append(f"M{number(x)} {number(base)}h{number(width)}v{number(height)}h-{number(width)}z")
    return drawn
