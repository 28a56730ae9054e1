"""Opening a connection: resolve, connect, TLS, each with its own name when it fails.

The steps are taken one by one, not by a single library call, because "the name does not exist", "nobody listens" and
"that is not TLS" are three different things to tell an operator. None of them can have executed anything.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable

from taskgate.core.errors import Executed
from taskgate.upstreams.http.connection import Connection
from taskgate.upstreams.http.failure import HttpFailure, Stage
from taskgate.upstreams.http.target import Origin
from taskgate.upstreams.http.tls import TlsLayer

ConnectionFactory = Callable[[socket.socket], Connection]
_Address = tuple[int, tuple[str, int]]


async def open_connection(
    origin: Origin, factory: ConnectionFactory, *, context: ssl.SSLContext | None, until: float
) -> Connection:
    """A connection ready for its first exchange. `until` is a loop time."""
    addresses = await _resolve(origin, until)
    sock = await _connect_first(addresses, until)
    stage = Stage.TLS if context is not None else Stage.CONNECT
    connection = factory(sock)
    try:
        async with asyncio.timeout_at(until):
            await _attach(connection, sock, context, origin.host)
    except TimeoutError:
        raise _refuse(stage, "no TLS handshake in time") from None
    except OSError as error:
        raise _refuse(stage, f"the TLS handshake failed: {error}") from error
    return connection


async def _attach(connection: Connection, sock: socket.socket, context: ssl.SSLContext | None, host: str) -> None:
    loop = asyncio.get_running_loop()
    layer = TlsLayer(connection, context, host) if context is not None else None
    protocol: asyncio.Protocol = connection if layer is None else layer
    try:
        transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    except BaseException:
        sock.close()
        raise
    if layer is not None:
        try:
            await layer.ready
        except BaseException:
            transport.abort()
            raise


async def _resolve(origin: Origin, until: float) -> list[_Address]:
    try:
        literal = ipaddress.ip_address(origin.host)
    except ValueError:
        pass
    else:
        family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
        return [(family, (origin.host, origin.port))]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(until):
            found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise _refuse(Stage.RESOLVE, "the name was not resolved in time") from None
    except (OSError, UnicodeError) as error:
        raise _refuse(Stage.RESOLVE, f"the name was not resolved: {error}") from error
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


async def _connect_first(addresses: list[_Address], until: float) -> socket.socket:
    """Try each address with a fair share of the time left, so that one silent address does not use it all."""
    loop = asyncio.get_running_loop()
    problem = "no address"
    for position, (family, address) in enumerate(addresses):
        share = (until - loop.time()) / (len(addresses) - position)
        try:
            async with asyncio.timeout(share):
                return await _connect_one(loop, family, address)
        except TimeoutError:
            problem = "no answer in time"
        except OSError as error:
            problem = str(error)
    raise _refuse(Stage.CONNECT, f"could not connect: {problem}")


async def _connect_one(loop: asyncio.AbstractEventLoop, family: int, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse(stage: Stage, message: str) -> HttpFailure:
    return HttpFailure(stage, message, Executed.NO)
