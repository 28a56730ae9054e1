"""The HTTP server's connection object, with what uvicorn leaves out: deadlines for slow callers, and news of a lost peer.

Headers must arrive within ten seconds, bodies within a minute and not slower than a kilobyte a second. A sweep over all
connections once a second enforces it, because a timer for each request would cost every honest caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_DEADLINE_S: Final = 10.0
BODY_DEADLINE_S: Final = 60.0
SLOW_AFTER_S: Final = 10.0
LEAST_BYTES_PER_S: Final = 1024
CONNECTION: Final = "taskgate.connection"


class OneWrite:
    """A transport that keeps the head of a response back until its body comes, so that both leave in one system call.

    Sending is the most expensive thing a small answer does. A head whose body does not follow at once (an event stream)
    leaves with the next turn of the loop.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: Any, loop: Any) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is not None:
            data, self._head = self._head + data, None
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None and not self._transport.is_closing():
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """Lives as long as one TCP connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_lost: Callable[[], None] | None = None
        self._waiting_since: float | None = None
        self._body_since: float | None = None
        self._received = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport = OneWrite(transport, self.loop)  # type: ignore[assignment]
        self._waiting_since = self.loop.time()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        if self._waiting_since is None:
            self._waiting_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._body_since, self._waiting_since = self.loop.time(), None
        self._received = 0
        self.on_lost = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_since = None
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def too_slow(self, now: float) -> bool:
        if self._waiting_since is not None:
            return now - self._waiting_since > HEADER_DEADLINE_S
        if self._body_since is None:
            return False
        spent = now - self._body_since
        starved = spent > SLOW_AFTER_S and self._received < spent * LEAST_BYTES_PER_S
        return spent > BODY_DEADLINE_S or starved

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def drop_slow(connections: Any, now: float) -> int:
    """Drop every connection that takes too long to say what it wants."""
    slow = [peer for peer in list(connections) if isinstance(peer, Connection) and peer.too_slow(now)]
    for peer in slow:
        peer.drop()
    return len(slow)
