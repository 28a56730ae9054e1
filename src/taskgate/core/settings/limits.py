"""The `limits` section: what one caller, server or peer may use.

A reload applies every limit; a request beyond one is refused with an error that names it.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import Section
from taskgate.core.settings.values import Bytes, Count, Duration, Milliseconds, Money

MIB: Final = 1024 * 1024


class Limits(Section):
    """Limits on requests, sessions, tasks and buffers. A request beyond a limit is refused with an error that names the limit."""

    open_tasks_per_caller: Annotated[
        Count,
        Meta(
            description="Unfinished tasks per caller, including calls that became tasks. For callers without a token: per "
            "session or `taskgate/client` name, and ten times as many per address. A call that was sent becomes "
            "a task also above the limit; when calls that became tasks alone have reached it, further plain "
            "calls are refused."
        ),
    ] = 200
    open_tasks_per_tenant: Annotated[
        Count | None, Meta(description="Unfinished tasks per tenant. Unset: no limit.")
    ] = None
    pending_approvals_per_caller: Annotated[
        Count, Meta(description="Open approvals per token, or per address for callers without a token.")
    ] = 20
    pending_approvals_per_tenant: Annotated[
        Count | None, Meta(description="Open approvals per tenant. Unset: no limit.")
    ] = None
    anonymous_pending_approvals: Annotated[
        Count, Meta(description="Open approvals of all callers without a token together.")
    ] = 200
    pending_questions_per_server: Annotated[Count, Meta(description="Open questions per server.")] = 100
    request_bytes: Annotated[Bytes, Meta(description="Size of one message from a caller.")] = 4 * MIB
    result_bytes: Annotated[
        Bytes,
        Meta(
            description="Size of one message from a server. If a page of a list is larger, the pages before it are listed."
        ),
    ] = 16 * MIB
    json_depth: Annotated[
        Count,
        Meta(
            le=200,
            description="Nesting depth of one message, or of one tool in a list. A tool beyond the limit is omitted. At most "
            "200.",
        ),
    ] = 128
    json_nodes: Annotated[
        Count,
        Meta(
            description="Number of JSON values in one message, or in one tool of a list. A tool beyond the limit is omitted."
        ),
    ] = 100_000
    tools_per_upstream: Annotated[
        Count, Meta(description="Tools per server. Further tools are not listed and cannot be called.")
    ] = 10_000
    instances_per_server: Annotated[
        Count, Meta(description="Processes per server with `instances: auto`. Further conversations share a process.")
    ] = 16
    tools_max_pages: Annotated[Count, Meta(description="Pages of one server's tool list.")] = 100
    tools_fetch_timeout_ms: Annotated[
        Milliseconds, Meta(ge=1, description="Timeout for fetching one server's lists.")
    ] = 30_000
    list_max_age: Annotated[
        Duration,
        Meta(description="Refetch a server's lists after this time. Ten times this for servers that announce changes."),
    ] = duration("1m")
    sessions: Annotated[Count, Meta(description="Concurrent sessions.")] = 10_000
    sessions_per_caller: Annotated[
        Count, Meta(description="Concurrent sessions per token, or per address for callers without a token.")
    ] = 2_500
    sessions_per_tenant: Annotated[
        Count | None, Meta(description="Concurrent sessions per tenant. Unset: no limit.")
    ] = None
    anonymous_sessions: Annotated[
        Count, Meta(description="Concurrent sessions of all callers without a token together.")
    ] = 5_000
    connections: Annotated[
        Count, Meta(description="Concurrent connections. Further ones get HTTP 503 and are closed.")
    ] = 10_000
    connections_per_address: Annotated[
        Count, Meta(description="Concurrent connections per address. Trusted proxies are exempt.")
    ] = 5_000
    header_count: Annotated[Count, Meta(description="Headers per request. More return HTTP 431.")] = 100
    header_bytes: Annotated[Bytes, Meta(description="Size of the request line and headers together.")] = 64 * 1024
    session_idle: Annotated[Duration, Meta(description="End a session after this time without calls and streams.")] = (
        duration("30m")
    )
    calls_per_caller_per_second: Annotated[
        Count | None, Meta(description="Rate of calls per caller. Unset: no limit.")
    ] = None
    burst_per_caller: Annotated[
        Count,
        Meta(
            description="Calls above the rate that a caller may send at once. Applies when `calls_per_caller_per_second` is "
            "set."
        ),
    ] = 50
    calls_per_tenant_per_second: Annotated[
        Count | None, Meta(description="Rate of calls per tenant. Unset: no limit.")
    ] = None
    burst_per_tenant: Annotated[
        Count,
        Meta(
            description="Calls above the rate that a tenant may send at once. Applies when `calls_per_tenant_per_second` is "
            "set."
        ),
    ] = 500
    calls_in_flight_per_caller: Annotated[
        Count | None, Meta(description="Concurrent calls per caller. Unset: no limit.")
    ] = None
    calls_in_flight_per_tenant: Annotated[
        Count | None, Meta(description="Concurrent calls per tenant. Unset: no limit.")
    ] = None
    sampling_tokens_per_tenant_per_hour: Annotated[
        Count | None, Meta(description="Model tokens per tenant and hour. Unset: no limit.")
    ] = None
    sampling_money_per_tenant_per_hour: Annotated[
        Money | None,
        Meta(
            description="Model cost per tenant and hour, in the currency of the prices in `providers`. Unset: no limit."
        ),
    ] = None
    calls_in_flight: Annotated[
        Count, Meta(description="Concurrent calls. Further calls are refused at once and are not executed.")
    ] = 10_000
    busy_after: Annotated[
        Duration,
        Meta(
            description="The gateway is overloaded when every call waits longer than this inside the gateway, for as long as "
            "this, while it uses the CPU itself or more than 100 calls wait. Late calls are then refused until one is on time."
        ),
    ] = duration("500ms")
    queue_per_server: Annotated[Count, Meta(description="Calls that may wait for a server's `max_concurrency`.")] = (
        1_000
    )
    runs_per_server: Annotated[
        Count, Meta(description="Task executions in progress per server. Further tasks wait.")
    ] = 500
    stream_buffer_bytes: Annotated[
        Bytes,
        Meta(
            description="Bytes of one event stream that are kept for replay. A session stream with eight times as much "
            "unread data is closed."
        ),
    ] = MIB
    stream_buffer_events: Annotated[Count, Meta(description="Events of one stream that are kept for replay.")] = 256
    events_per_caller: Annotated[Count, Meta(description="Events that are kept per caller.")] = 1_000
    events_age: Annotated[Duration, Meta(description="How long events are kept for a caller.")] = duration("30m")
    question_timeout: Annotated[Duration, Meta(description="How long a server's question waits for an answer.")] = (
        duration("10m")
    )
    timers_per_session: Annotated[Count, Meta(description="Timers per session.")] = 100
    script_calls: Annotated[Count, Meta(description="Calls that one script may make. One more ends it.")] = 1_000
    script_parallel_calls: Annotated[
        Count,
        Meta(
            description="Calls of one script that may be open at once. One more raises in the script and is not made."
        ),
    ] = 50
    script_time: Annotated[
        Duration, Meta(description="Execution time of one script. Waiting for people and `sleep` do not count.")
    ] = duration("10m")
    script_step_time: Annotated[Duration, Meta(description="CPU time of one script between two calls.")] = duration(
        "5s"
    )
    script_step_wall: Annotated[
        Duration, Meta(description="Time that a script may take between two calls, also on a busy machine.")
    ] = duration("1m")
    script_cpu_per_caller: Annotated[
        Count | None,
        Meta(
            description="CPU seconds per minute for the scripts of a caller, or of an address without a token. Beyond it "
            "steps wait. Unset: no limit."
        ),
    ] = None
    script_cpu_per_tenant: Annotated[
        Count | None,
        Meta(description="CPU seconds per minute for the scripts of a tenant. Beyond it steps wait. Unset: no limit."),
    ] = None
    script_question_timeout: Annotated[
        Duration, Meta(description="How long a question of a script (`ask`) waits for an answer.")
    ] = duration("7d")
    script_memory_bytes: Annotated[Bytes, Meta(description="Memory that the values of one script may use.")] = 64 * MIB
    script_output_bytes: Annotated[Bytes, Meta(description="How much of what one script prints is kept.")] = 64 * 1024
    header_timeout: Annotated[Duration, Meta(description="Time for a client to send its request headers.")] = duration(
        "10s"
    )
    body_timeout: Annotated[Duration, Meta(description="Time for a client to send its request body.")] = duration("1m")
    drain_timeout: Annotated[Duration, Meta(description="Time for open requests to finish at shutdown.")] = duration(
        "25s"
    )
    url_elicitations_per_minute: Annotated[Count, Meta(description="URL elicitations per caller and minute.")] = 10
    url_elicitation_expiry: Annotated[
        Duration, Meta(description="How long the link of a URL elicitation is valid.")
    ] = duration("5m")
    url_elicitation_loopback: Annotated[
        bool, Meta(description="Allow servers to send `http` links to this machine. Otherwise `https` is required.")
    ] = False
