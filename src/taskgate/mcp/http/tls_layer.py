"""TLS for a client connection: the standard library's TLS over memory buffers.

The TLS transports of the event loops hide how much of a request is still waiting to be sent. Here the connection receives
`pause_writing` and `resume_writing` from the socket itself, which show whether a request was sent completely.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

from taskgate.mcp.http.connection import HttpConnection

_READ_BYTES = 256 * 1024


class TlsLayer(asyncio.Protocol):
    """TLS between a transport and a connection. `ready` is done after the handshake, or holds its error."""

    def __init__(self, inner: HttpConnection, context: ssl.SSLContext, host: str) -> None:
        self.inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._transport: asyncio.Transport | None = None
        self._handshake_done = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # The protocol, called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handshake()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._handshake_done:
            self._handshake()
        if self._handshake_done:
            self._read()

    def eof_received(self) -> None:
        # Without a TLS close_notify this may be a truncation attack: treat the connection as broken, not as closed.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionError("the peer closed the connection during the handshake"))
        if self._handshake_done:
            self.inner.connection_lost(exc)
        self._transport = None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    # The transport, called by the connection.

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

    # Handshake, decryption and output.

    def _handshake(self) -> None:
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
        self._handshake_done = True
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
