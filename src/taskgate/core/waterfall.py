"""Recent requests and the calls to servers that they caused, with start and end times, as a waterfall diagram.

The ring buffer is bounded and takes one small object per request, so it is always enabled. Drawing is pure: spans in,
HTML out.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from taskgate.core.text.plain_text import html_escaped, visible

KEPT: Final = 2_000
CALLS: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
DRAWN: Final = 120
_TICKS: Final = 4
_LABEL: Final = 48
"""Characters of a name."""
_MIN_WIDTH: Final = 0.2
"""Percent of the axis that a bar has at least, so that a short call is visible."""
_TONES: Final = {"running": "t-off", "ok": "t-ok", "error": "t-bad", "cancelled": "t-wait", "promoted": "t-run"}
"""The class that the style sheet gives a colour to. All other states are types of errors."""
_WORDS: Final = {"running": "running ", "ok": "", "cancelled": "cancelled ", "promoted": "became a task "}
"""What is written beside the duration, for those who do not see the colours."""


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


class Waterfall:
    """A ring buffer of spans."""

    def __init__(self, kept: int = KEPT) -> None:
        self._ring: deque[Span] = deque(maxlen=kept)
        self.next_number: Final = itertools.count(1).__next__
        self.add: Final = self._ring.append
        """For code on the path of every call, which builds its spans itself."""

    def begin(
        self, kind: str, method: str, name: str, server: str, caller: str, *, now: float, began: float, parent: int = 0
    ) -> Span:
        """Add a span. `now` is the time of day, `began` the same moment by the monotonic clock."""
        span = Span(
            number=self.next_number(),
            parent=parent,
            kind=kind,
            method=method,
            name=name,
            server=server,
            caller=caller,
            start=now,
            began=began,
        )
        self.add(span)
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


def diagram(spans: Sequence[Span], now: float, window: Window | None = None) -> str:
    """Draw one bar for each span on a common time axis, as a list in HTML; calls are below the request that caused them.

    The name of each request links to its task, or to its own diagram if it has none. Attributes contain the displayed
    period, so that a page can let users select a part of it.
    """
    rows = _nested(spans[-DRAWN:])
    if not rows:
        return f'<p class="dim">{"No requests in this period." if window else "No requests yet."}</p>'
    shown = window or Window(min(span.start for span, _ in rows), max(span.end or now for span, _ in rows))
    shown = Window(shown.begin, max(shown.end, shown.begin + 0.001))
    length = shown.end - shown.begin
    ticks = "".join(f"<span>{_time(length * place / _TICKS)}</span>" for place in range(_TICKS))
    axis = f'<li class="axis" aria-hidden="true"><span class="ticks">{ticks}</span><span class="n">{_time(length)}</span></li>'
    where = f'data-begin="{shown.begin * 1000:.1f}" data-end="{shown.end * 1000:.1f}"'
    drawn = "".join(_row(span, depth, shown, now) for span, depth in rows)
    return f'<ol class="spans" aria-label="The latest requests and their calls" {where}>{axis}{drawn}</ol>'


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


def _row(span: Span, depth: int, shown: Window, now: float) -> str:
    scale = 100 / (shown.end - shown.begin)
    begin = (min(max(span.start, shown.begin), shown.end) - shown.begin) * scale
    end = (min(max(span.end or now, shown.begin), shown.end) - shown.begin) * scale
    begin = min(begin, 100 - _MIN_WIDTH)
    tip = html_escaped(visible(f"{span.kind} {span.method} {span.name} {span.server} ({span.state})"))
    bar = (
        f'<rect class="{_TONES.get(span.state, _TONES["error"])}" x="{begin:.2f}%" width="{max(_MIN_WIDTH, end - begin):.2f}%">'
        f"<title>{tip}</title></rect>"
    )
    name = html_escaped(visible(_what(span)[:_LABEL]))
    if span.task:
        # The name is the link for the keyboard and for screen readers.
        address = f"/tasks/{html_escaped(span.task)}"
        name = f'<a class="what" href="{address}">{name}</a>'
        bar = f'<a href="{address}" tabindex="-1">{bar}</a>'
    elif depth:
        name = f'<span class="what">{name}</span>'
    else:
        name = f'<a class="what" href="/waterfall?trace={span.number}">{name}</a>'
    took = f'<span class="n">{_WORDS.get(span.state, "failed ")}{_time((span.end or now) - span.start)}</span>'
    kind = ' class="child"' if depth else ""
    return f'<li{kind}>{name}<svg aria-hidden="true">{bar}</svg>{took}</li>'


def _what(span: Span) -> str:
    """A call by the name of its target, and any other request by its method."""
    called = f"{span.server}: {span.name or span.method}" if span.server else span.name
    what = called if called and span.is_call else f"{span.method} {span.name}".strip()
    return f"line {span.line}: {what}" if span.line else what


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    amount, unit = (seconds, "s") if seconds < 60 else (seconds / 60, "min")
    return f"{amount:.1f}".removesuffix(".0") + f" {unit}"
