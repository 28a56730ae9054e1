"""Recent requests and the calls to servers that they caused, with start and end times, as a waterfall diagram.

The ring buffer is bounded and takes one small object per request, so it is always enabled. Drawing is pure: spans in,
SVG out.
"""

from __future__ import annotations

import html
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from taskgate.core.text.plain_text import visible

KEPT: Final = 2_000
CALLS: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
DRAWN: Final = 150
_ROW: Final = 18
_LABEL: Final = 330
_WIDTH: Final = 1200
_RIGHT: Final = 90
"""Space on the right for the duration of a bar."""
_COLOURS: Final = {
    "running": "#8a8a8a",
    "ok": "#2f7d4f",
    "error": "#b3261e",
    "cancelled": "#a56a00",
    "promoted": "#3a5fcd",
}


class Span(msgspec.Struct, gc=False):
    """One request, or one call to a server. `parent` is the number of the request that caused it, or 0."""

    number: int
    parent: int
    kind: str
    method: str
    name: str
    server: str
    caller: str
    start: float
    """Start in seconds since 1970. That clock can be set, so the duration is measured with the monotonic clock."""
    began: float = 0.0
    """Start by the monotonic clock."""
    end: float = 0.0
    state: str = "running"
    task: str = ""
    """The task that a request became, or whose run a call belongs to."""
    script: str = ""
    """The task of the script that made the call."""
    line: int = 0
    """The line of the call in the source of its script."""

    @property
    def is_call(self) -> bool:
        """Whether it calls a tool, reads a resource or gets a prompt, rather than polls, lists or subscribes."""
        return self.method in CALLS

    def belongs_to(self, task_id: str) -> None:
        self.task = task_id

    def made_by(self, script: str, line: int) -> None:
        self.script, self.line = script, line

    def over(self, state: str, now: float) -> None:
        """End the span. `now` is by the monotonic clock."""
        self.end = self.start + (now - self.began)
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
            "task": self.task or None,
            "script": self.script or None,
            "line": self.line or None,
        }


class Waterfall:
    """A ring buffer of spans."""

    def __init__(self, kept: int = KEPT) -> None:
        self._ring: deque[Span] = deque(maxlen=kept)
        self._numbers = itertools.count(1)

    def begin(
        self, kind: str, method: str, name: str, server: str, caller: str, *, now: float, began: float, parent: int = 0
    ) -> Span:
        """Add a span. `now` is the time of day, `began` the same moment by the monotonic clock."""
        span = Span(next(self._numbers), parent, kind, method, name, server, caller, now, began)
        self._ring.append(span)
        return span

    def latest(self, limit: int = KEPT) -> list[Span]:
        """Return the newest spans, the oldest of them first."""
        return list(self._ring)[-limit:]


class Window(msgspec.Struct, frozen=True):
    """The displayed period, in seconds since 1970."""

    begin: float
    end: float


def in_window(spans: Sequence[Span], window: Window, now: float) -> list[Span]:
    """Return the spans that overlap the window."""
    return [span for span in spans if span.start <= window.end and (span.end or now) >= window.begin]


def svg(spans: Sequence[Span], now: float, window: Window | None = None) -> str:
    """Draw one bar for each span on a common time axis; calls are below the request that caused them.

    The name of each request links to its task, or to its own diagram if it has none. Attributes contain the displayed
    period, so that a page can let users select a part of it.
    """
    rows = _nested(spans[-DRAWN:])
    height = _ROW * (len(rows) + 1) + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="group" '
        'aria-label="The latest requests and their calls" font-size="11"'
    )
    if not rows:
        return (
            head
            + f'><text x="8" y="{_ROW}">{"No requests in this period." if window else "No requests yet."}</text></svg>'
        )
    shown = window or Window(min(span.start for span, _ in rows), max(span.end or now for span, _ in rows))
    shown = Window(shown.begin, max(shown.end, shown.begin + 0.001))
    drawn = [_bar(row, span, depth, shown, now) for row, (span, depth) in enumerate(rows)]
    where = (
        f' data-begin="{shown.begin * 1000:.1f}" data-end="{shown.end * 1000:.1f}"'
        f' data-left="{_LABEL}" data-right="{_WIDTH - _RIGHT}" data-width="{_WIDTH}"'
    )
    axis = f'<text class="dim" x="{_LABEL}" y="12">0 ms</text><text class="dim" x="{_WIDTH - _RIGHT}" y="12">'
    return f"{head}{where}>{axis}{_time(shown.end - shown.begin)}</text>{''.join(drawn)}</svg>"


def parents_of(spans: Sequence[Span]) -> dict[int, int]:
    """Return the number of the request below which each span is shown; 0 for a request itself.

    A call of a script is shown below the request that started the script, also if it was made after the reply.
    """
    scripts = {span.task: span.number for span in reversed(spans) if span.kind == "request" and span.is_call}
    return {span.number: span.parent or (scripts.get(span.script, 0) if span.script else 0) for span in spans}


def _nested(spans: Sequence[Span]) -> list[tuple[Span, int]]:
    here, parents = {span.number for span in spans}, parents_of(spans)
    children: dict[int, list[Span]] = {}
    for span in spans:
        if parents[span.number] in here:
            children.setdefault(parents[span.number], []).append(span)
    rows: list[tuple[Span, int]] = []
    for span in spans:
        if parents[span.number] not in here:
            rows.append((span, 0))
            rows += [(child, 1) for child in children.get(span.number, ())]
    return rows


def _bar(row: int, span: Span, depth: int, shown: Window, now: float) -> str:
    y = _ROW * (row + 1)
    scale = (_WIDTH - _LABEL - _RIGHT) / (shown.end - shown.begin)
    x = _LABEL + (min(max(span.start, shown.begin), shown.end) - shown.begin) * scale
    to = _LABEL + (min(max(span.end or now, shown.begin), shown.end) - shown.begin) * scale
    took = (span.end or now) - span.start
    what = f"{span.server}: {span.name or span.method}" if span.server else f"{span.method} {span.name}".strip()
    if span.line:
        what = f"line {span.line}: {what}"
    label = html.escape(visible(what[:48]))
    tip = html.escape(visible(f"{span.kind} {span.method} {span.name} {span.server} ({span.state})"))
    colour = _COLOURS.get(span.state, "#8a8a8a")
    name = f'<text x="{8 + depth * 16}" y="{y + 12}">{label}</text>'
    bar = (
        f'<rect x="{x:.1f}" y="{y + 3}" width="{max(1.0, to - x):.1f}" height="{_ROW - 6}" rx="2" fill="{colour}">'
        f"<title>{tip}</title></rect>"
    )
    if span.task:
        linked = f'<a href="/tasks/{html.escape(span.task)}">{name}{bar}</a>'
    elif depth:
        linked = name + bar
    else:
        linked = f'<a href="/waterfall?trace={span.number}">{name}</a>{bar}'
    return linked + f'<text class="dim" x="{min(to + 4, _WIDTH - _RIGHT + 6):.1f}" y="{y + 12}">{_time(took)}</text>'


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
