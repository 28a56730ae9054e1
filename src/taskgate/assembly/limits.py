"""Build the limits from the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskgate.config.model.gateway_file import GatewayFile
from taskgate.core.sampling.spending import SpendLimits
from taskgate.gateway.limits import Limits

if TYPE_CHECKING:
    pass


def build_limits(root: GatewayFile) -> Limits:
    limits = root.limits
    return Limits(
        limits.request_bytes,
        limits.result_bytes,
        limits.tools_per_upstream,
        limits.tools_max_pages,
        limits.tools_fetch_timeout_ms / 1000,
        limits.list_max_age.total_seconds(),
        limits.sessions,
        limits.session_idle.total_seconds(),
        limits.open_tasks_per_caller,
        limits.pending_approvals_per_caller,
        queue_per_server=limits.queue_per_server,
        runs_per_server=limits.runs_per_server,
        calls_per_caller_per_second=limits.calls_per_caller_per_second,
        burst_per_caller=limits.burst_per_caller,
        calls_in_flight=limits.calls_in_flight,
        pending_questions_per_server=limits.pending_questions_per_server,
        question_timeout_s=limits.question_timeout.total_seconds(),
        busy_after_s=limits.busy_after.total_seconds(),
        json_depth=limits.json_depth,
        json_nodes=limits.json_nodes,
        stream_buffer_bytes=limits.stream_buffer_bytes,
        stream_buffer_events=limits.stream_buffer_events,
        events_per_caller=limits.events_per_caller,
        events_age_s=limits.events_age.total_seconds(),
        timers_per_session=limits.timers_per_session,
        header_timeout_s=limits.header_timeout.total_seconds(),
        body_timeout_s=limits.body_timeout.total_seconds(),
        drain_timeout_s=limits.drain_timeout.total_seconds(),
        sessions_per_caller=limits.sessions_per_caller,
        anonymous_sessions=limits.anonymous_sessions,
        connections=limits.connections,
        connections_per_address=limits.connections_per_address,
        anonymous_pending_approvals=limits.anonymous_pending_approvals,
        header_count=limits.header_count,
        header_bytes=limits.header_bytes,
        open_tasks_per_tenant=limits.open_tasks_per_tenant,
        pending_approvals_per_tenant=limits.pending_approvals_per_tenant,
        sessions_per_tenant=limits.sessions_per_tenant,
        calls_per_tenant_per_second=limits.calls_per_tenant_per_second,
        burst_per_tenant=limits.burst_per_tenant,
        calls_in_flight_per_caller=limits.calls_in_flight_per_caller,
        calls_in_flight_per_tenant=limits.calls_in_flight_per_tenant,
        sampling_of_tenant=SpendLimits(
            limits.sampling_tokens_per_tenant_per_hour, limits.sampling_money_per_tenant_per_hour
        ),
    )
