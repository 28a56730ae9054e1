"""Every limit of the gateway; each has a clear error at the limit. A reload changes all of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from taskgate.config.words import Bytes, Count, Duration, Milliseconds, Section


class Limits(Section):
    """Limits."""

    open_tasks_per_caller: Count = Field(default=200, description="Unfinished tasks of one caller.")
    pending_approvals_per_caller: Count = Field(
        default=20, description="Open approvals of one token, or without one of one address."
    )
    anonymous_pending_approvals: Count = Field(
        default=200, description="Open approvals of all callers without a token together."
    )
    pending_questions_per_server: Count = Field(default=100, description="Open questions of one server.")
    request_bytes: Bytes = Field(default=4 << 20, description="One message from a caller.")
    result_bytes: Bytes = Field(default=16 << 20, description="One message from a server.")
    json_depth: Annotated[Count, Field(le=200)] = Field(
        default=64, description="Nesting of JSON, from callers and from servers."
    )
    json_nodes: Count = Field(default=100_000, description="Values in one message, from callers and from servers.")
    tools_per_upstream: Count = Field(default=1_000, description="Tools of one server; the rest are left out, loudly.")
    tools_max_pages: Count = Field(default=100, description="Pages of one server's list.")
    tools_fetch_timeout_ms: Milliseconds = Field(default=30_000, ge=1, description="Time to fetch one server's lists.")
    list_max_age: Duration = Field(
        default=timedelta(seconds=60),
        description="A server's lists are fetched again when they are older; ten times that where it announces changes.",
    )
    sessions: Count = Field(default=10_000, description="Sessions at once.")
    sessions_per_caller: Count = Field(
        default=2_500, description="Sessions of one caller: of a token, or without one of an address."
    )
    anonymous_sessions: Count = Field(default=5_000, description="Sessions of all callers without a token together.")
    connections: Count = Field(default=10_000, description="Connections at once; more are answered 503 and closed.")
    connections_per_address: Count = Field(
        default=5_000, description="Connections of one address at once; trusted proxies may have more."
    )
    header_count: Count = Field(default=100, description="Headers of one request; more are answered 431.")
    header_bytes: Bytes = Field(default=64 << 10, description="Address and headers of one request together.")
    session_idle: Duration = Field(
        default=timedelta(minutes=30), description="A session without calls and streams ends after this."
    )
    calls_per_caller_per_second: Count | None = Field(
        default=None, description="Rate of calls of one caller; without it no limit."
    )
    burst_per_caller: Count = Field(default=50, description="Calls that may come at once when a rate is set.")
    calls_in_flight: Count = Field(
        default=10_000, description="Calls being answered at once; more are refused at once and were not executed."
    )
    busy_after: Duration = Field(
        default=timedelta(milliseconds=500),
        description="A call that nobody could look at for so long is refused: there is too much to do.",
    )
    queue_per_server: Count = Field(default=1_000, description="Calls that may wait for a server's max_concurrency.")
    runs_per_server: Count = Field(
        default=500, description="Calls of tasks that one server has open at once; more wait in line."
    )
    stream_buffer_bytes: Bytes = Field(
        default=1 << 20,
        description="Bytes of one stream kept for replay; a session's stream with eight times as much unread is dropped.",
    )
    stream_buffer_events: Count = Field(default=256, description="Events of one stream kept for replay.")
    events_per_caller: Count = Field(default=1_000, description="Events kept for one caller.")
    events_age: Duration = Field(default=timedelta(minutes=30), description="How long events are kept for a caller.")
    question_timeout: Duration = Field(
        default=timedelta(minutes=10), description="How long a server's question waits for an answer."
    )
    timers_per_session: Count = Field(default=100, description="Timers of one session.")
    header_timeout: Duration = Field(
        default=timedelta(seconds=10), description="Time for a client to send its headers."
    )
    body_timeout: Duration = Field(default=timedelta(seconds=60), description="Time for a client to send its body.")
    drain_timeout: Duration = Field(default=timedelta(seconds=25), description="Time for open requests at shutdown.")
    url_elicitations_per_minute: Count = Field(default=10, description="URL elicitations of one caller.")
    url_elicitation_expiry: Duration = Field(default=timedelta(minutes=5), description="How long such a link is good.")
    url_elicitation_loopback: bool = Field(
        default=False, description="Whether a server's link may be plain http to this machine."
    )
