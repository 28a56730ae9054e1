"""The timeline of a task as one bar, drawn to scale: waiting and working in different tones, moments as marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from taskgate.dashboard import units
from taskgate.dashboard.charts.markup import number, text
from taskgate.dashboard.task_phases import Phase, PhaseKind

_WIDTH: Final = 1000
_HEIGHT: Final = 20
_TONES: Final = {PhaseKind.WAITING: "t-wait", PhaseKind.WORKING: "t-run"}
MIN_WIDTH: Final = 2.0


def phase_bar(phases: Sequence[Phase], moments: Sequence[tuple[int, str]]) -> Markup:
    """`moments` are times and what happened then. An empty bar for a task without a duration."""
    if not phases:
        return Markup("")
    begin, end = phases[0].from_ms, max(phases[-1].to_ms, phases[0].from_ms + 1)

    def place(at_ms: int) -> float:
        return min(max((at_ms - begin) / (end - begin), 0.0), 1.0) * _WIDTH

    drawn = []
    for phase in phases:
        x = min(place(phase.from_ms), _WIDTH - MIN_WIDTH)
        width = max(MIN_WIDTH, place(phase.to_ms) - x)
        tip = f"{phase.label}: {units.duration(phase.to_ms - phase.from_ms)}"
        drawn.append(
            f'<rect class="{_TONES[phase.kind]}" x="{number(x)}" width="{number(width)}" height="{_HEIGHT}">'
            f"<title>{text(tip)}</title></rect>"
        )
    for at_ms, label in moments:
        tip = f"{label}, after {units.duration(at_ms - begin)}"
        drawn.append(
            f'<rect class="mark" x="{number(min(place(at_ms), _WIDTH - 1.5))}" width="1.5" height="{_HEIGHT}">'
            f"<title>{text(tip)}</title></rect>"
        )
    sums = {
        kind: sum(phase.to_ms - phase.from_ms for phase in phases if phase.kind is kind)
        for kind in (PhaseKind.WAITING, PhaseKind.WORKING)
    }
    legend = "".join(
        f'<li class="{_TONES[kind]}">{kind.value} {text(units.duration(took))}</li>'
        for kind, took in sums.items()
        if took
    )
    total = text(units.duration(end - begin))
    return Markup(
        f'<div class="phases"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="Timeline to scale: {total}">{"".join(drawn)}</svg>'
        f'<p class="scale"><span>0</span><span>{total}</span></p><ul class="legend">{legend}</ul></div>'
    )
