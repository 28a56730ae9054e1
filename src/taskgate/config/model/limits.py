"""The `limits` section. A reload applies every limit; a request beyond one is refused with an error that names it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from taskgate.config.model.values import Bytes, Count, Duration, Milliseconds, Money, Section


class Limits(Section):
    """Limits."""

    open_tasks_per_caller: Count = Field(
        default=200,
        description="Unfinished tasks of one caller, calls that became tasks included. Without a token: of one session or of one "
        "`taskgate/client`, and ten times as many of all such callers at one address.",
    )
    open_tasks_per_tenant: Count | None = Field(
        default=None, description="Unfinished tasks of all callers of one tenant together; without it no limit."
    )
    pending_approvals_per_caller: Count = Field(
        default=20, description="Open approvals of one token, or without one of one address."
    )
    pending_approvals_per_tenant: Count | None = Field(
        default=None, description="Open approvals of all callers of one tenant together; without it no limit."
    )
    anonymous_pending_approvals: Count = Field(
        default=200, description="Open approvals of all callers without a token together."
    )
    pending_questions_per_server: Count = Field(default=100, description="Open questions of one server.")
    request_bytes: Bytes = Field(default=4 << 20, description="One message from a caller.")
    result_bytes: Bytes = Field(default=16 << 20, description="One message from a server.")
    json_depth: Annotated[Count, Field(le=200)] = Field(
        default=64,
        description="Nesting of one message, from callers and from servers; in a list, of one tool. A tool beyond it is omitted.",
    )
    json_nodes: Count = Field(
        default=100_000,
        description="Values in one message, from callers and from servers; in a list, of one tool. A tool beyond it is omitted.",
    )
    tools_per_upstream: Count = Field(
        default=10_000, description="Tools of one server; the rest are not listed and cannot be called."
    )
    instances_per_server: Count = Field(
        default=16,
        description="Processes of one server for single conversations, with `instances: auto`; beyond it they are shared.",
    )
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
    sessions_per_tenant: Count | None = Field(
        default=None, description="Sessions of all callers of one tenant together; without it no limit."
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
    calls_per_tenant_per_second: Count | None = Field(
        default=None, description="Rate of calls of all callers of one tenant together; without it no limit."
    )
    burst_per_tenant: Count = Field(
        default=500, description="Calls of a tenant that may come at once when a rate is set."
    )
    calls_in_flight_per_caller: Count | None = Field(
        default=None, description="Calls of one caller being answered at once; without it no limit."
    )
    calls_in_flight_per_tenant: Count | None = Field(
        default=None, description="Calls of all callers of one tenant being answered at once; without it no limit."
    )
    sampling_tokens_per_tenant_per_hour: Count | None = Field(
        default=None, description="Tokens of models for all callers of one tenant together; without it no limit."
    )
    sampling_money_per_tenant_per_hour: Money | None = Field(
        default=None, description="Money for models for all callers of one tenant together; without it no limit."
    )
    calls_in_flight: Count = Field(
        default=10_000, description="Calls being answered at once; more are refused at once and were not executed."
    )
    busy_after: Duration = Field(
        default=timedelta(milliseconds=500),
        description="The longest that calls may wait in the gateway itself. If every call waits longer, for as long as this, late "
        "calls are refused until one is on time.",
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
