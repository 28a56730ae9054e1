"""Latency over time: the median as a line in a band that reaches from it to the 99th percentile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from markupsafe import Markup

from taskgate.dashboard import units
from taskgate.dashboard.charts.axis import round_top
from taskgate.dashboard.charts.figure import HEIGHT, WIDTH, Column, Row, Series, figure, hover
from taskgate.dashboard.charts.markup import number

SERIES: Final = (Series("p50", "t-run"), Series("p99", "t-band"))


def latency_band(
    title: str,
    columns: Sequence[Column],
    *,
    summary: str = "",
    show: Callable[[float | None], str] = units.duration,
) -> Markup:
    """`values` of each column are (p50, p99). Where a column has none the line is interrupted: no calls are not zero latency."""
    highs = [column.values[1] for column in columns if column.values[1] is not None]
    top = round_top(max(highs, default=0))
    pieces = list(_pieces(columns))
    drawn = [_piece(piece, len(columns), top) for piece in pieces]
    for place, column in enumerate(columns):
        low, high = column.values
        numbers = "no calls" if low is None else f"p50 {show(low)}, p99 {show(high)}"
        drawn.append(hover(place, len(columns), column, numbers))
    rows = [
        Row(column, tuple(show(value) for value in column.values)) for column in columns if column.values[0] is not None
    ]
    return figure(title, SERIES, columns, "".join(drawn), rows, top=show(top), middle=show(top / 2), summary=summary)


def _pieces(columns: Sequence[Column]) -> Iterator[list[tuple[int, float, float]]]:
    """Runs of neighbouring columns with values, as (place, p50, p99)."""
    piece: list[tuple[int, float, float]] = []
    for place, column in enumerate(columns):
        low, high = column.values
        if low is None or high is None:
            if piece:
                yield piece
            piece = []
        else:
            piece.append((place, low, high))
    if piece:
        yield piece


def _piece(piece: list[tuple[int, float, float]], count: int, top: float) -> str:
    step = WIDTH / max(1, count)

    def point(place: float, value: float) -> str:
        return f"{number(place * step)} {number(HEIGHT - value / top * HEIGHT)}"

    if len(piece) == 1:  # a line through one point has no length: draw it as wide as its column
        place, low, high = piece[0]
        spread = [(place + 0.1, low, high), (place + 0.9, low, high)]
    else:
        spread = [(place + 0.5, low, high) for place, low, high in piece]
    upper = "L".join(point(place, high) for place, _, high in spread)
    lower = "L".join(point(place, low) for place, low, _ in reversed(spread))
    line = "L".join(point(place, low) for place, low, _ in spread)
    return f'<path class="t-band" d="M{upper}L{lower}Z"/><path class="line" d="M{line}"/>'
