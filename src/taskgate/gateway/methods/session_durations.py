"""Record how long sessions of callers, and sessions with servers, lasted. Used only where tracing is enabled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskgate import clock
from taskgate.gateway.events import EventHub, ServerSessionEnded, SessionEnded
from taskgate.gateway.plan import Live
from taskgate.gateway.relay.traced_calls import PIPE, TCP, network_transport
from taskgate.ports.upstream import Upstream

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


def record_sessions(tracing: Tracing, events: EventHub, upstreams: Live[Mapping[str, Upstream]]) -> None:
    """Record each session when it ends."""
    from taskgate.telemetry.tracing import CLIENT_SESSION, SERVER_SESSION

    def of_caller(event: SessionEnded) -> None:
        session = event.session
        if session.opened:
            seconds, transport = clock.monotonic() - session.opened, PIPE if session.by_stdio else TCP
            tracing.session_ended(SERVER_SESSION, seconds, session.version, transport)
            session.mark_recorded()

    def with_server(event: ServerSessionEnded) -> None:
        transport = network_transport(upstreams.value.get(event.server))
        tracing.session_ended(CLIENT_SESSION, event.seconds, event.version, transport, event.error_type)

    events.subscribe(SessionEnded, of_caller)
    events.subscribe(ServerSessionEnded, with_server)
