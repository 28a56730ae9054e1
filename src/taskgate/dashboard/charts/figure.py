"""What every chart has around its drawing: title, legend, axes, and its numbers as a table.

The drawing is stretched to the width of the page, so text is never part of it: labels are HTML beside it and keep their size on a
phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from markupsafe import Markup

from taskgate.dashboard.charts.markup import address, number, text

WIDTH: Final = 600
HEIGHT: Final = 120
MAX_LABELS: Final = 5


class Series(msgspec.Struct, frozen=True):
    """One kind of value in a chart. `tone` is the class that the style sheet gives its colour."""

    label: str
    tone: str


class Column(msgspec.Struct, frozen=True):
    """One place on the horizontal axis, with a value for each series; None where there is none."""

    label: str
    values: tuple[float | None, ...]
    href: str | None = None
    at_ms: int | None = None
    """The time where it begins, for charts over time: the script shows it in the user's time zone."""
    with_day: bool = False
    """Whether the day belongs to that time."""
    detail: str = ""
    """More about this column, on hover."""
    axis: str = ""
    """What the horizontal axis shows instead of `label`, if that is too long."""


class Row(msgspec.Struct, frozen=True):
    """A row of the table of a chart."""

    column: Column
    cells: tuple[str, ...]


def figure(
    title: str,
    series: Sequence[Series],
    columns: Sequence[Column],
    drawing: str,
    rows: Sequence[Row],
    *,
    top: str,
    middle: str,
    summary: str = "",
    table_head: str = "From",
) -> Markup:
    """A chart with its axes: `top` and `middle` are the labels of the vertical one, `summary` is shown beside the title."""
    legend = "".join(f'<li class="{text(one.tone)}">{text(one.label)}</li>' for one in series)
    legend = f'<ul class="legend">{legend}</ul>'
    beside = f' <span class="dim">{text(summary)}</span>' if summary else ""
    axis = "".join(
        f"<span>{text(column.axis) if column.axis else _place(column)}</span>" for column in _labelled(columns)
    )
    return Markup(
        f'<figure class="chart"><figcaption><b>{text(title)}</b>{beside}{legend}</figcaption>'
        f'<div class="plot"><div class="y" aria-hidden="true"><span>{text(top)}</span><span>{text(middle)}</span><span>0</span>'
        f"</div>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="group" aria-label="{text(title)}">'
        f'<path class="grid" d="M0 0.5H{WIDTH}M0 {HEIGHT // 2}H{WIDTH}M0 {HEIGHT - 0.5}H{WIDTH}"/>{drawing}</svg>'
        f'<div class="x" aria-hidden="true">{axis}</div></div>{_table(title, series, rows, table_head)}</figure>'
    )


def hover(place: int, count: int, column: Column, numbers: str) -> str:
    """The whole height of a column as one area: its numbers on hover, its link on click."""
    step = WIDTH / max(1, count)
    tip = f"{text(column.label)}: {text(numbers)}{text(' · ' + column.detail) if column.detail else ''}"
    area = f'<rect class="area" x="{number(place * step)}" width="{number(step)}" height="{HEIGHT}"/>'
    inside = f"<title>{tip}</title>{area}"
    if column.href is None:
        return f"<g>{inside}</g>"
    # The table below has the same links for the keyboard and for screen readers: sixty tab stops here would hide the page.
    return f'<a href="{address(column.href)}" tabindex="-1">{inside}</a>'


def _labelled(columns: Sequence[Column]) -> list[Column]:
    """A few columns at equal distances, the first one among them."""
    if len(columns) <= MAX_LABELS:
        return list(columns)
    step = len(columns) / MAX_LABELS
    return [columns[int(place * step)] for place in range(MAX_LABELS)]


def _place(column: Column) -> str:
    if column.at_ms is None:
        return text(column.label)
    days = " data-days" if column.with_day else ""
    return f'<time data-axis="{column.at_ms}"{days}>{text(column.label)}</time>'


def _table(title: str, series: Sequence[Series], rows: Sequence[Row], head: str) -> str:
    if not rows:
        return ""
    names = "".join(f'<th scope="col" class="n">{text(one.label)}</th>' for one in series)
    lines = []
    for row in rows:
        place = _place(row.column)
        linked = f'<a href="{address(row.column.href)}">{place}</a>' if row.column.href else place
        cells = "".join(f'<td class="n">{text(cell)}</td>' for cell in row.cells)
        lines.append(f'<tr><th scope="row">{linked}</th>{cells}</tr>')
    return (
        f'<details class="numbers"><summary>Numbers</summary><div class="table" tabindex="0" role="region" '
        f'aria-label="{text(title)}, numbers"><table class="plain dense"><thead><tr><th scope="col">{text(head)}</th>{names}'
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div></details>"
    )
