"""Diagrams of the gateway."""

from __future__ import annotations

import html
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from taskgate.core.answers import mermaid
from taskgate.core.peer_input import visible
from taskgate.core.questions import ELICIT, SAMPLE
from taskgate.core.tasks import projections
from taskgate.core.tasks.state import MOVES, TaskState, TransitionKind

# The five diagrams that explain the gateway to its callers, in mermaid. Those of state machines are drawn from the
# tables that the machines run by.
#
# A waterfall: the latest requests and the upstream calls they caused, with when each began and ended.
#
# The ring is bounded and costs one small object per request, so it is always on. Drawing it is pure: spans in, SVG out.

_WORDS: Final = {
    TransitionKind.RESULT_CAME: "Final server returns result",
    TransitionKind.ERROR_CAME: "Final server returns error",
    TransitionKind.CONTACT_LOST: "Final server disconnects",
    TransitionKind.CANCELLED: "Client calls cancel_task",
    TransitionKind.APPROVAL_DENIED: "Approver says no",
    TransitionKind.APPROVAL_EXPIRED: "Nobody approves in time",
    TransitionKind.REFUSED: "Policy says no",
}
_ORDER: Final = ("completed", "failed", "cancelled", "expired")

_LIFECYCLE: Final = """stateDiagram-v2
    [*] --> in_flight : execute_tool called

    in_flight --> returned_result : Completes within timeout
    in_flight --> promoted_to_task : Timeout expires

    returned_result --> [*] : Result returned to client (no task created)

    promoted_to_task --> task_working : Task created

    state task_working {
        [*] --> waiting
        waiting --> completed : Result received
        waiting --> failed : Error received
    }"""

_ENTITIES: Final = """flowchart TB
    subgraph "Original Client"
        OC[Client Tools]
    end

    subgraph "MCP Proxy"
        Tasks[(Proxy Tasks)]
        Elicit[(Pending Elicitations)]
        Sampling[(Pending Sampling)]
        Notif[(Buffered Notifications)]
        Logs[(Buffered Logs)]
    end

    subgraph "Final Servers"
        FS1[Server 1]
        FS2[Server 2]
    end

    OC -->|execute_tool| Tasks
    OC -->|respond_to_elicitation| Elicit
    OC -->|respond_to_sampling| Sampling
    OC -->|await_activity| Tasks & Elicit & Sampling & Notif
    OC -->|get_logs| Logs

    FS1 -->|elicitation/create| Elicit
    FS1 -->|sampling/createMessage| Sampling
    FS1 -->|notifications/*| Notif
    FS1 -->|notifications/message| Logs
    FS2 -->|elicitation/create| Elicit
    FS2 -->|sampling/createMessage| Sampling"""


def diagrams() -> list[dict[str, Any]]:
    return [
        {
            "name": "proxy_task_states",
            "description": "State machine for proxy tasks created when tool calls exceed timeout",
            "mermaid": _task_states(),
        },
        {
            "name": "pending_elicitation_states",
            "description": "State machine for elicitation requests from final servers awaiting client response",
            "mermaid": mermaid(ELICIT),
        },
        {
            "name": "pending_sampling_states",
            "description": "State machine for sampling requests from final servers awaiting LLM completion",
            "mermaid": mermaid(SAMPLE),
        },
        {
            "name": "tool_call_lifecycle",
            "description": "Flow showing how tool calls are promoted to tasks on timeout",
            "mermaid": _LIFECYCLE,
        },
        {
            "name": "entity_relationships",
            "description": "Overview of all proxy entities and how they interact",
            "mermaid": _ENTITIES,
        },
    ]


def _task_states() -> str:
    """The table of tasks as the tools show it: everything before the end is `working`."""
    lines = ["stateDiagram-v2", "    [*] --> working : execute_tool timeout expires", ""]
    for word in _ORDER:
        lines += [f"    working --> {word} : {cause}" for cause in dict.fromkeys(_causes(word))]
    lines += ["", *(f"    {word} --> [*] : Cleaned up after retention period" for word in _ORDER)]
    return "\n".join(lines)


def _causes(word: str) -> list[str]:
    shown = projections.states_shown_as(word)
    if word == "failed":
        shown -= {TaskState.COMPLETED}
    found = [kind for moves in MOVES.values() for kind, after in moves.items() if after in shown]
    return [_WORDS[kind] for kind in found]


KEPT: Final = 2_000
DRAWN: Final = 150
_ROW: Final = 18
_LABEL: Final = 330
_WIDTH: Final = 1200
_RIGHT: Final = 90
"""Room at the right for how long a bar took."""
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
    """When it began, in seconds since 1970. That clock can be set meanwhile, so how long it took is measured by another one."""
    began: float = 0.0
    """The same moment by the monotonic clock."""
    end: float = 0.0
    state: str = "running"

    def over(self, state: str, now: float) -> None:
        """`now` by the monotonic clock."""
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
        }


class Waterfall:
    def __init__(self, kept: int = KEPT) -> None:
        self._ring: deque[Span] = deque(maxlen=kept)
        self._numbers = itertools.count(1)

    def begin(
        self, kind: str, method: str, name: str, server: str, caller: str, *, now: float, began: float, parent: int = 0
    ) -> Span:
        """`now` is the time of day, `began` the same moment by the monotonic clock."""
        span = Span(next(self._numbers), parent, kind, method, name, server, caller, now, began)
        self._ring.append(span)
        return span

    def latest(self, limit: int = KEPT) -> list[Span]:
        """The newest spans, oldest of them first."""
        return list(self._ring)[-limit:]


class Window(msgspec.Struct, frozen=True):
    """The time that a drawing shows, in seconds since 1970."""

    begin: float
    end: float


def in_window(spans: Sequence[Span], window: Window, now: float) -> list[Span]:
    """Those of which something falls into the window."""
    return [span for span in spans if span.start <= window.end and (span.end or now) >= window.begin]


def svg(spans: Sequence[Span], now: float, window: Window | None = None) -> str:
    """One bar for each span on a common time axis; calls stand under the request that caused them.

    Each request's name leads to the drawing of it alone. The attributes say which time lies where, so that a page can let people
    choose a part of it.
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
            + f'><text x="8" y="{_ROW}">{"Nothing fits." if window else "Nothing has been asked yet."}</text></svg>'
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


def _bar(row: int, span: Span, depth: int, shown: Window, now: float) -> str:
    y = _ROW * (row + 1)
    scale = (_WIDTH - _LABEL - _RIGHT) / (shown.end - shown.begin)
    x = _LABEL + (min(max(span.start, shown.begin), shown.end) - shown.begin) * scale
    to = _LABEL + (min(max(span.end or now, shown.begin), shown.end) - shown.begin) * scale
    took = (span.end or now) - span.start
    what = f"{span.server}: {span.name or span.method}" if span.server else f"{span.method} {span.name}".strip()
    label = html.escape(visible(what[:48]))
    tip = html.escape(visible(f"{span.kind} {span.method} {span.name} {span.server} ({span.state})"))
    colour = _COLOURS.get(span.state, "#8a8a8a")
    name = f'<text x="{8 + depth * 16}" y="{y + 12}">{label}</text>'
    return (
        (name if depth else f'<a href="/waterfall?trace={span.number}">{name}</a>')
        + f'<rect x="{x:.1f}" y="{y + 3}" width="{max(1.0, to - x):.1f}" height="{_ROW - 6}" rx="2" fill="{colour}">'
        f"<title>{tip}</title></rect>"
        f'<text class="dim" x="{min(to + 4, _WIDTH - _RIGHT + 6):.1f}" y="{y + 12}">{_time(took)}</text>'
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
