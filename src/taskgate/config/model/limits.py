"""The `limits` section: descriptions and ranges of the limits in `core.limits`.

A reload applies every limit; a request beyond one is refused with an error that names it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from taskgate.config.model.values import Bytes, Count, Duration, Milliseconds, Money
from taskgate.config.sections import Field, Section
from taskgate.core.limits import DEFAULTS


class Limits(Section):
    """Limits on requests, sessions, tasks and buffers. A request beyond a limit is refused with an error that names the limit."""

    open_tasks_per_caller: Count = Field(
        default=DEFAULTS.open_tasks_per_caller,
        description="Unfinished tasks per caller, including calls that became tasks. For callers without a token: per session "
        "or `taskgate/client` name, and ten times as many per address. A call that was sent becomes a task also above the limit; "
        "when calls that became tasks alone have reached it, further plain calls are refused.",
    )
    open_tasks_per_tenant: Count | None = Field(
        default=None, description="Unfinished tasks per tenant. Unset: no limit."
    )
    pending_approvals_per_caller: Count = Field(
        default=DEFAULTS.pending_approvals_per_caller,
        description="Open approvals per token, or per address for callers without a token.",
    )
    pending_approvals_per_tenant: Count | None = Field(
        default=None, description="Open approvals per tenant. Unset: no limit."
    )
    anonymous_pending_approvals: Count = Field(
        default=DEFAULTS.anonymous_pending_approvals,
        description="Open approvals of all callers without a token together.",
    )
    pending_questions_per_server: Count = Field(
        default=DEFAULTS.pending_questions_per_server, description="Open questions per server."
    )
    request_bytes: Bytes = Field(default=DEFAULTS.request_bytes, description="Size of one message from a caller.")
    result_bytes: Bytes = Field(
        default=DEFAULTS.result_bytes,
        description="Size of one message from a server. If a page of a list is larger, the pages before it are listed.",
    )
    json_depth: Annotated[Count, Field(le=200)] = Field(
        default=DEFAULTS.json_depth,
        description="Nesting depth of one message, or of one tool in a list. A tool beyond the limit is omitted. At most 200.",
    )
    json_nodes: Count = Field(
        default=DEFAULTS.json_nodes,
        description="Number of JSON values in one message, or in one tool of a list. A tool beyond the limit is omitted.",
    )
    tools_per_upstream: Count = Field(
        default=DEFAULTS.tools_per_upstream,
        description="Tools per server. Further tools are not listed and cannot be called.",
    )
    instances_per_server: Count = Field(
        default=16,
        description="Processes per server with `instances: auto`. Further conversations share a process.",
    )
    tools_max_pages: Count = Field(default=DEFAULTS.tools_max_pages, description="Pages of one server's tool list.")
    tools_fetch_timeout_ms: Milliseconds = Field(
        default=int(1000 * DEFAULTS.tools_fetch_timeout_s), ge=1, description="Timeout for fetching one server's lists."
    )
    list_max_age: Duration = Field(
        default=timedelta(seconds=DEFAULTS.list_max_age_s),
        description="Refetch a server's lists after this time. Ten times this for servers that announce changes.",
    )
    sessions: Count = Field(default=DEFAULTS.sessions, description="Concurrent sessions.")
    sessions_per_caller: Count = Field(
        default=DEFAULTS.sessions_per_caller,
        description="Concurrent sessions per token, or per address for callers without a token.",
    )
    sessions_per_tenant: Count | None = Field(
        default=None, description="Concurrent sessions per tenant. Unset: no limit."
    )
    anonymous_sessions: Count = Field(
        default=DEFAULTS.anonymous_sessions, description="Concurrent sessions of all callers without a token together."
    )
    connections: Count = Field(
        default=DEFAULTS.connections, description="Concurrent connections. Further ones get HTTP 503 and are closed."
    )
    connections_per_address: Count = Field(
        default=DEFAULTS.connections_per_address,
        description="Concurrent connections per address. Trusted proxies are exempt.",
    )
    header_count: Count = Field(default=DEFAULTS.header_count, description="Headers per request. More return HTTP 431.")
    header_bytes: Bytes = Field(
        default=DEFAULTS.header_bytes, description="Size of the request line and headers together."
    )
    session_idle: Duration = Field(
        default=timedelta(seconds=DEFAULTS.session_idle_s),
        description="End a session after this time without calls and streams.",
    )
    calls_per_caller_per_second: Count | None = Field(
        default=None, description="Rate of calls per caller. Unset: no limit."
    )
    burst_per_caller: Count = Field(
        default=DEFAULTS.burst_per_caller,
        description="Calls above the rate that a caller may send at once. Applies when `calls_per_caller_per_second` is set.",
    )
    calls_per_tenant_per_second: Count | None = Field(
        default=None, description="Rate of calls per tenant. Unset: no limit."
    )
    burst_per_tenant: Count = Field(
        default=DEFAULTS.burst_per_tenant,
        description="Calls above the rate that a tenant may send at once. Applies when `calls_per_tenant_per_second` is set.",
    )
    calls_in_flight_per_caller: Count | None = Field(
        default=None, description="Concurrent calls per caller. Unset: no limit."
    )
    calls_in_flight_per_tenant: Count | None = Field(
        default=None, description="Concurrent calls per tenant. Unset: no limit."
    )
    sampling_tokens_per_tenant_per_hour: Count | None = Field(
        default=None, description="Model tokens per tenant and hour. Unset: no limit."
    )
    sampling_money_per_tenant_per_hour: Money | None = Field(
        default=None,
        description="Model cost per tenant and hour, in the currency of the prices in `providers`. Unset: no limit.",
    )
    calls_in_flight: Count = Field(
        default=DEFAULTS.calls_in_flight,
        description="Concurrent calls. Further calls are refused at once and are not executed.",
    )
    busy_after: Duration = Field(
        default=timedelta(seconds=DEFAULTS.busy_after_s),
        description="The gateway is overloaded when every call waits longer than this inside the gateway, for as long as this. "
        "Late calls are then refused until one is on time.",
    )
    queue_per_server: Count = Field(
        default=DEFAULTS.queue_per_server, description="Calls that may wait for a server's `max_concurrency`."
    )
    runs_per_server: Count = Field(
        default=DEFAULTS.runs_per_server, description="Task executions in progress per server. Further tasks wait."
    )
    stream_buffer_bytes: Bytes = Field(
        default=DEFAULTS.stream_buffer_bytes,
        description="Bytes of one event stream that are kept for replay. A session stream with eight times as much unread data "
        "is closed.",
    )
    stream_buffer_events: Count = Field(
        default=DEFAULTS.stream_buffer_events, description="Events of one stream that are kept for replay."
    )
    events_per_caller: Count = Field(default=DEFAULTS.events_per_caller, description="Events that are kept per caller.")
    events_age: Duration = Field(
        default=timedelta(seconds=DEFAULTS.events_age_s), description="How long events are kept for a caller."
    )
    question_timeout: Duration = Field(
        default=timedelta(seconds=DEFAULTS.question_timeout_s),
        description="How long a server's question waits for an answer.",
    )
    timers_per_session: Count = Field(default=DEFAULTS.timers_per_session, description="Timers per session.")
    script_calls: Count = Field(
        default=DEFAULTS.script_calls, description="Calls that one script may make. One more ends it."
    )
    script_parallel_calls: Count = Field(
        default=DEFAULTS.script_parallel_calls,
        description="Calls of one script that may be open at once. One more raises in the script and is not made.",
    )
    script_time: Duration = Field(
        default=timedelta(seconds=DEFAULTS.script_time_s),
        description="Execution time of one script. Waiting for people and `sleep` do not count.",
    )
    script_step_time: Duration = Field(
        default=timedelta(seconds=DEFAULTS.script_step_time_s),
        description="CPU time of one script between two calls.",
    )
    script_step_wall: Duration = Field(
        default=timedelta(seconds=DEFAULTS.script_step_wall_s),
        description="Time that a script may take between two calls, also on a busy machine.",
    )
    script_cpu_per_caller: Count | None = Field(
        default=None,
        description="CPU seconds per minute for the scripts of a caller, or of an address without a token. Beyond it steps wait. "
        "Unset: no limit.",
    )
    script_cpu_per_tenant: Count | None = Field(
        default=None,
        description="CPU seconds per minute for the scripts of a tenant. Beyond it steps wait. Unset: no limit.",
    )
    script_question_timeout: Duration = Field(
        default=timedelta(seconds=DEFAULTS.script_question_timeout_s),
        description="How long a question of a script (`ask`) waits for an answer.",
    )
    script_memory_bytes: Bytes = Field(
        default=DEFAULTS.script_memory_bytes, description="Memory that the values of one script may use."
    )
    script_output_bytes: Bytes = Field(
        default=DEFAULTS.script_output_bytes, description="How much of what one script prints is kept."
    )
    header_timeout: Duration = Field(
        default=timedelta(seconds=DEFAULTS.header_timeout_s),
        description="Time for a client to send its request headers.",
    )
    body_timeout: Duration = Field(
        default=timedelta(seconds=DEFAULTS.body_timeout_s), description="Time for a client to send its request body."
    )
    drain_timeout: Duration = Field(
        default=timedelta(seconds=DEFAULTS.drain_timeout_s), description="Time for open requests to finish at shutdown."
    )
    url_elicitations_per_minute: Count = Field(default=10, description="URL elicitations per caller and minute.")
    url_elicitation_expiry: Duration = Field(
        default=timedelta(minutes=5), description="How long the link of a URL elicitation is valid."
    )
    url_elicitation_loopback: bool = Field(
        default=False, description="Allow servers to send `http` links to this machine. Otherwise `https` is required."
    )
