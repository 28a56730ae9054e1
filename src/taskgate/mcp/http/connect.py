"""Opening a connection: resolve, connect, TLS, each with its own name when it fails.

The steps are taken one by one, not by a single library call, because "the name does not exist", "nobody listens" and
"that is not TLS" are three different things to tell an operator. None of them can have executed anything. The event loop
makes and owns the sockets: handing it one of ours would leave two owners of a descriptor if the peer hangs up just then.

TLS is spoken by the standard library over memory. The event loops bring TLS of their own, but theirs hides how much of a
request still waits to be sent; here the connection hears `pause_writing` and `resume_writing` of the real socket.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar, cast

from taskgate import clock
from taskgate.mcp.addresses import is_public_address
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.connection import HttpConnection
from taskgate.mcp.http.target import Origin

_READ_BYTES = 256 * 1024


class TlsLayer(asyncio.Protocol):
    """Wraps one connection. `ready` is done when the handshake is, or holds what went wrong with it."""

    def __init__(self, inner: HttpConnection, context: ssl.SSLContext, host: str) -> None:
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


_Wire = TypeVar("_Wire", bound=asyncio.Protocol)
ConnectionFactory = Callable[[], HttpConnection]


async def open_connection(
    origin: Origin, factory: ConnectionFactory, *, context: ssl.SSLContext | None, until: float
) -> HttpConnection:
    """A connection ready for its first exchange. `until` is a loop time."""
    if origin.host.startswith("/"):
        return await _connect_unix(origin.host, until, factory)
    addresses = await _resolve(origin, until)
    if origin.public_only and not all(map(is_public_address, addresses)):
        # The very numbers that were judged are connected to, so a name that changes its mind gains nothing.
        raise _refuse(Stage.CONNECT, "the address leads into this machine or a private network, which is not allowed")
    if context is None:
        _, connection = await _connect_first(addresses, origin.port, until, factory)
        return connection
    transport, layer = await _connect_first(
        addresses, origin.port, until, lambda: TlsLayer(factory(), context, origin.host)
    )
    try:
        async with asyncio.timeout_at(until):
            await layer.ready
    except TimeoutError:
        transport.abort()
        raise _refuse(Stage.TLS, "no TLS handshake in time") from None
    except OSError as error:
        raise _refuse(Stage.TLS, f"the TLS handshake failed: {error}") from error
    except BaseException:
        transport.abort()
        raise
    return layer.inner


async def _resolve(origin: Origin, until: float) -> list[str]:
    try:
        ipaddress.ip_address(origin.host)
    except ValueError:
        pass
    else:
        return [origin.host]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(until):
            found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise _refuse(Stage.RESOLVE, "the name was not resolved in time") from None
    except (OSError, UnicodeError) as error:
        raise _refuse(Stage.RESOLVE, f"the name was not resolved: {error}") from error
    return [str(address[0]) for _, _, _, _, address in found]


async def _connect_first(
    addresses: list[str], port: int, until: float, factory: Callable[[], _Wire]
) -> tuple[asyncio.Transport, _Wire]:
    """Try each address with a fair share of the time left, so that one silent address does not use it all."""
    loop = asyncio.get_running_loop()
    problem = "no address"
    for position, address in enumerate(addresses):
        share = (until - clock.monotonic()) / (len(addresses) - position)
        try:
            async with asyncio.timeout(share):
                return await loop.create_connection(factory, address, port)
        except TimeoutError:
            problem = "no answer in time"
        except OSError as error:
            problem = str(error)
    raise _refuse(Stage.CONNECT, f"could not connect: {problem}")


async def _connect_unix(path: str, until: float, factory: ConnectionFactory) -> HttpConnection:
    try:
        async with asyncio.timeout_at(until):
            _, connection = await asyncio.get_running_loop().create_unix_connection(factory, path)
            return connection
    except TimeoutError:
        raise _refuse(Stage.CONNECT, "could not connect: no answer in time") from None
    except OSError as error:
        raise _refuse(Stage.CONNECT, f"could not connect: {error}") from error


def _refuse(stage: Stage, message: str) -> HttpFailure:
    return HttpFailure(stage, message, Executed.NO)
