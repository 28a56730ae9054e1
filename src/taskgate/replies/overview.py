"""The overview, current activity, and names that were found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from taskgate.replies.fields import Time, about
from taskgate.replies.history import CallSummary
from taskgate.replies.tasks import OperatorTask


class ServerTraffic(Struct, frozen=True, kw_only=True):
    """Recent calls of one server."""

    server: Annotated[str, about("name of the server")]
    calls: Annotated[int, about("calls in the last ten minutes")]
    per_second: Annotated[float, about("calls per second in the last minute")]
    errors: Annotated[int, about("failed calls")]
    p50_ms: Annotated[float | None, about("median latency")]
    p99_ms: Annotated[float | None, about("99th percentile of the latency")]
    counts: Annotated[Sequence[int], about("calls in slices of 20 seconds")]


class Now(Struct, frozen=True, kw_only=True):
    """Current activity."""

    open: Annotated[Sequence[OperatorTask], about("open tasks")]
    failed: Annotated[Sequence[OperatorTask], about("tasks that failed within the last hour")]
    servers: Annotated[Sequence[ServerTraffic], about("traffic by server; empty without the permission `see`")]
    has_tasks: Annotated[bool, about("whether the store has any task that you may see")]


class AttentionItem(Struct, frozen=True, kw_only=True):
    """Something that needs attention."""

    kind: Annotated[str, about("`approval`, `question`, `server`, `definition`, `budget` or `errors`")]
    text: Annotated[str, about("what it is about")]
    address: Annotated[str, about("path of its page in the console")]
    since: Annotated[Time | None, about("since when")]


class ServerSummary(CallSummary, frozen=True, kw_only=True):
    """The calls of one server."""

    name: Annotated[str, about("name of the server")]


class Overview(Struct, frozen=True, kw_only=True):
    """The overview."""

    range: Annotated[str, about("`hour`, `day` or `week`")]
    seconds: Annotated[int, about("length of the range")]
    total: CallSummary
    before: CallSummary
    waiting: Annotated[int, about("approvals and questions in your inbox")]
    waited: CallSummary
    answered: CallSummary
    open: Annotated[Sequence[OperatorTask], about("the newest open tasks")]
    open_count: Annotated[int, about("number of open tasks, counted up to 100")]
    more_open: Annotated[bool, about("whether there are more than that")]
    running: Annotated[int, about("how many of those are running")]
    servers_down: Annotated[Sequence[str], about("servers that are not connected")]
    attention: Annotated[Sequence[AttentionItem], about("what needs attention, the most urgent first")]
    servers: Annotated[Sequence[ServerSummary], about("calls by server, most calls first")]
    has_calls: Annotated[bool, about("whether there was any call that you may see")]


class FoundName(Struct, frozen=True, kw_only=True):
    """Something with a page whose name was found."""

    kind: Annotated[str, about("`task`, `server`, `caller`, `tool` or `page`")]
    name: Annotated[str, about("the name that contains the text")]
    detail: Annotated[str, about("more about it; may be empty")]
    address: Annotated[str, about("path of its page in the console")]
