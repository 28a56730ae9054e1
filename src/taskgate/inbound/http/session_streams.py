"""The event streams of sessions: each session's own stream, and streamed replies that can still be resumed."""

from __future__ import annotations

from collections.abc import Callable

from taskgate.core.settings.limits import Limits
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.session import Session
from taskgate.inbound.http.event_stream import EventStream


class StreamBuffers:
    """The resumable streams of one session, newest last, within a limit."""

    def __init__(self, limits: Callable[[], Limits], suffix: str = "", maximum: int = 32) -> None:
        """`suffix` distinguishes streams of this gateway from those of gateways that held the session before."""
        self._limits = limits
        self._suffix = suffix
        self._most = maximum
        self._streams: dict[str, EventStream] = {}
        self._count = 0

    def new(self) -> EventStream:
        self._count += 1
        stream = EventStream(f"s{self._suffix}{self._count}", True, self._limits)
        self._streams[stream.name] = stream
        if len(self._streams) > self._most:
            finished = next((name for name, old in self._streams.items() if old.closed), next(iter(self._streams)))
            del self._streams[finished]
        return stream

    def find(self, event_id: str) -> tuple[EventStream, int] | None:
        name, _, number = event_id.rpartition(".")
        stream = self._streams.get(name)
        if stream is None or not (number.isascii() and number.isdigit()) or len(number) > 15:
            return None
        return stream, int(number)

    def adopt(self, stream: EventStream) -> None:
        self._streams[stream.name] = stream


class SessionStreams:
    """The streams of all HTTP sessions."""

    def __init__(self, plan: Live[Plan]) -> None:
        self._plan = plan
        self.buffers: dict[str, StreamBuffers] = {}
        """By session id."""

    def attach(self, session: Session) -> None:
        """Give a session its own stream. An adopted session gets stream names that its previous home did not use."""
        suffix = f"{session.moves}-" if session.moves else ""
        stream = EventStream(f"g{suffix}", resumable=True, limits=self._limits)
        session.attach(stream)
        buffers = self.buffers[session.id] = StreamBuffers(self._limits, suffix)
        buffers.adopt(stream)

    def _limits(self) -> Limits:
        return self._plan.value.limits

    def forget(self, session: Session) -> None:
        self.buffers.pop(session.id, None)
        if isinstance(session.outlet, EventStream):
            session.outlet.close()
