"""A waterfall: the latest requests and the upstream calls they caused, with when each began and ended.

The ring is bounded and costs one small object per request, so it is always on. Drawing it is pure: spans in, SVG out.
"""

from __future__ import annotations

import html
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

KEPT: Final = 2_000
DRAWN: Final = 200
_ROW: Final = 18
_LABEL: Final = 330
_WIDTH: Final = 1200
_COLOURS: Final = {
    "running": "#8a8a8a",
    "ok": "#2f7d4f",
    "error": "#b3261e",
    "cancelled": "#a56a00",
    "promoted": "#3a5fcd",
}


class Span(msgspec.Struct, gc=False):
    """One request, or one call to an upstream. `parent` is the number of the request that caused it, or 0."""

    number: int
    parent: int
    kind: str
    method: str
    name: str
    server: str
    caller: str
    start: float
    end: float = 0.0
    state: str = "running"

    def over(self, state: str, now: float) -> None:
        self.end = now
        self.state = state

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.number,
            "parent": self.parent or None,
            "kind": self.kind,
            "method": self.method,
            "name": self.name,
            "server": self.server,
            "caller": self.caller,
            "start_ms": round(self.start * 1000, 3),
            "end_ms": round(self.end * 1000, 3) if self.end else None,
            "state": self.state,
        }


class Waterfall:
    def __init__(self, kept: int = KEPT) -> None:
        self._ring: deque[Span] = deque(maxlen=kept)
        self._numbers = itertools.count(1)

    def begin(self, kind: str, method: str, name: str, server: str, caller: str, now: float, parent: int = 0) -> Span:
        span = Span(next(self._numbers), parent, kind, method, name, server, caller, now)
        self._ring.append(span)
        return span

    def latest(self, limit: int = KEPT) -> list[Span]:
        """The newest spans, oldest of them first."""
        return list(self._ring)[-limit:]


def svg(spans: Sequence[Span], now: float) -> str:
    """One bar for each span on a common time axis; calls stand under the request that caused them."""
    rows = _nested(spans[-DRAWN:])
    height = _ROW * (len(rows) + 1) + 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" font-size="11">'
    if not rows:
        return head + f'<text x="8" y="{_ROW}">Nothing has been asked yet.</text></svg>'
    begin = min(span.start for span, _ in rows)
    end = max(max(span.end or now for span, _ in rows), begin + 0.001)
    scale = (_WIDTH - _LABEL - 90) / (end - begin)
    drawn = [_bar(row, span, depth, begin, scale, now) for row, (span, depth) in enumerate(rows)]
    axis = f'<text class="dim" x="{_LABEL}" y="12">0 ms</text><text class="dim" x="{_WIDTH - 90}" y="12">'
    return f"{head}{axis}{_time(end - begin)}</text>{''.join(drawn)}</svg>"


def _nested(spans: Sequence[Span]) -> list[tuple[Span, int]]:
    here = {span.number for span in spans}
    children: dict[int, list[Span]] = {}
    for span in spans:
        if span.parent in here:
            children.setdefault(span.parent, []).append(span)
    rows: list[tuple[Span, int]] = []
    for span in spans:
        if span.parent not in here:
            rows.append((span, 0))
            rows += [(child, 1) for child in children.get(span.number, ())]
    return rows


def _bar(row: int, span: Span, depth: int, begin: float, scale: float, now: float) -> str:
    y = _ROW * (row + 1)
    x = _LABEL + (span.start - begin) * scale
    took = (span.end or now) - span.start
    what = f"{span.server}: {span.name or span.method}" if span.server else f"{span.method} {span.name}".strip()
    label = html.escape(what[:48])
    tip = html.escape(f"{span.kind} {span.method} {span.name} {span.server} ({span.state})")
    colour = _COLOURS.get(span.state, "#8a8a8a")
    return (
        f'<text x="{8 + depth * 16}" y="{y + 12}">{label}</text>'
        f'<rect x="{x:.1f}" y="{y + 3}" width="{max(1.0, took * scale):.1f}" height="{_ROW - 6}" rx="2" fill="{colour}">'
        f"<title>{tip}</title></rect>"
        f'<text class="dim" x="{min(x + took * scale + 4, _WIDTH - 84):.1f}" y="{y + 12}">{_time(took)}</text>'
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
