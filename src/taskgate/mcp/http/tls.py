"""TLS between a connection and its socket, by the standard library's `ssl` over memory.

The event loops bring TLS of their own, but theirs hides how much of a request still waits to be sent: it takes all of
it at once and keeps it out of sight. Here the connection hears `pause_writing` and `resume_writing` of the real socket.
Towards the event loop this is the protocol, towards the connection it is the transport.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

from taskgate.mcp.http.connection import Connection

_READ_BYTES = 256 * 1024


class TlsLayer(asyncio.Protocol):
    """Wraps one connection. `ready` is done when the handshake is, or holds what went wrong with it."""

    def __init__(self, inner: Connection, context: ssl.SSLContext, host: str) -> None:
        self.inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._transport: asyncio.Transport | None = None
        self._shaken = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # The protocol that the event loop sees.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._shake()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._shaken:
            self._shake()
        if self._shaken:
            self._read()

    def eof_received(self) -> None:
        # Without a farewell in TLS the end may be an attacker's: the connection is lost, not ended.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionError("the peer closed the connection during the handshake"))
        if self._shaken:
            self.inner.connection_lost(exc)
        self._transport = None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    # The transport that the connection sees.

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:
            self.abort()
        self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # In between.

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()
            if not self.ready.done():
                self.ready.set_exception(error)
            self.abort()
            return
        self._flush()
        self._shaken = True
        self.inner.connection_made(cast(Any, self))
        if not self.ready.done():
            self.ready.set_result(None)

    def _read(self) -> None:
        ended = False
        try:
            while True:
                data = self._tls.read(_READ_BYTES)
                if not data:
                    ended = True
                    break
                self.inner.data_received(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError:
            self.abort()
        self._flush()
        if ended:
            self.inner.eof_received()
            self.abort()

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())
