"""A small chart for one cell of a table: the course of one value, with its numbers on hover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from taskgate.dashboard.charts.markup import number, text

_WIDTH: Final = 100
_HEIGHT: Final = 20


def sparkline(values: Sequence[float], label: str, *, tone: str = "t-run") -> Markup:
    """The area below the values. `label` is its accessible name and is shown on hover, such as `12 calls in the last hour`."""
    maximum = max((*values, 0)) or 1
    step = _WIDTH / max(1, len(values) - 1)
    points = [
        f"{number(place * step)} {number(_HEIGHT - 1 - max(0.0, value) / maximum * (_HEIGHT - 2))}"
        for place, value in enumerate(values)
    ]
    if len(points) == 1:
        points.append(f"{_WIDTH} {points[0].split()[1]}")
    line = "L".join(points)
    drawn = f'<path class="line" d="M{line}"/>' if points else ""
    area = f'<path class="fill" d="M{line}L{_WIDTH} {_HEIGHT}L0 {_HEIGHT}Z"/>' if points else ""
    return Markup(
        f'<svg class="spark {tone}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}"><title>{text(label)}</title>{area}{drawn}</svg>'
    )
