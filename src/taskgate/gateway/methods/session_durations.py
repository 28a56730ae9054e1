"""Record how long sessions of callers, and sessions with servers, lasted: as metrics, and by OpenTelemetry if it is enabled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskgate import clock
from taskgate.gateway.events import EventHub, ServerSessionEnded, SessionEnded
from taskgate.gateway.plan import Live
from taskgate.gateway.relay.traced_calls import PIPE, TCP, network_transport
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


def record_sessions(
    metrics: Metrics, tracing: Tracing | None, events: EventHub, upstreams: Live[Mapping[str, Upstream]]
) -> None:
    """Record each session when it ends."""

    def of_caller(event: SessionEnded) -> None:
        session = event.session
        if session.opened:
            seconds, transport = clock.monotonic() - session.opened, PIPE if session.by_stdio else TCP
            metrics.session_seconds.observe(seconds, transport)
            if tracing is not None:
                tracing.caller_session_ended(seconds, session.version, transport)
            session.mark_recorded()

    def with_server(event: ServerSessionEnded) -> None:
        metrics.server_session_seconds.observe(event.seconds, event.server)
        if tracing is not None:
            transport = network_transport(upstreams.value.get(event.server))
            tracing.server_session_ended(event.seconds, event.version, transport, event.error_type)

    events.subscribe(SessionEnded, of_caller)
    events.subscribe(ServerSessionEnded, with_server)
