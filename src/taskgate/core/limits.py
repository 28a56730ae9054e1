"""The limits of the gateway and their defaults.

The only list: `config.model.limits` has a key for each field and takes its default from here (a duration there has no `_s`),
`assembly.limits` copies the configured values by name, and the reference is generated from the keys.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from taskgate.core.sampling.spending import SpendLimits
from taskgate.lazy_dataclass import dataclass

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Durations are in seconds. None means no limit."""

    request_bytes: int = 4 * MIB
    result_bytes: int = 16 * MIB
    tools_per_upstream: int = 10_000
    tools_max_pages: int = 100
    tools_fetch_timeout_s: float = 30.0
    list_max_age_s: float = 60.0
    sessions: int = 10_000
    session_idle_s: float = 1800.0
    open_tasks_per_caller: int = 200
    pending_approvals_per_caller: int = 20
    queue_per_server: int = 1000
    runs_per_server: int = 500
    calls_per_caller_per_second: float | None = None
    burst_per_caller: int = 50
    calls_in_flight: int = 10_000
    pending_questions_per_server: int = 100
    question_timeout_s: float = 600.0
    busy_after_s: float = 0.5
    json_depth: int = 128
    json_nodes: int = 100_000
    stream_buffer_bytes: int = MIB
    stream_buffer_events: int = 256
    events_per_caller: int = 1_000
    events_age_s: float = 1800.0
    timers_per_session: int = 100
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    drain_timeout_s: float = 25.0
    sessions_per_caller: int = 2_500
    anonymous_sessions: int = 5_000
    connections: int = 10_000
    connections_per_address: int = 5_000
    anonymous_pending_approvals: int = 200
    header_count: int = 100
    header_bytes: int = 64 * 1024
    open_tasks_per_tenant: int | None = None
    pending_approvals_per_tenant: int | None = None
    sessions_per_tenant: int | None = None
    calls_per_tenant_per_second: float | None = None
    burst_per_tenant: int = 500
    calls_in_flight_per_caller: int | None = None
    calls_in_flight_per_tenant: int | None = None
    script_calls: int = 1_000
    script_parallel_calls: int = 50
    script_time_s: float = 600.0
    script_step_time_s: float = 5.0
    """CPU time."""
    script_step_wall_s: float = 60.0
    script_cpu_per_caller: float | None = None
    """CPU seconds per minute."""
    script_cpu_per_tenant: float | None = None
    script_question_timeout_s: float = 7 * 24 * 3600.0
    script_memory_bytes: int = 64 * MIB
    script_output_bytes: int = 64 * 1024
    sampling_of_tenant: SpendLimits = field(default_factory=SpendLimits)
    """What models may spend for all callers of one tenant together."""


DEFAULTS: Final = Limits()
