"""Opening a connection: resolve, connect, TLS, each with its own name when it fails.

The steps are taken one by one, not by a single library call, because "the name does not exist", "nobody listens" and
"that is not TLS" are three different things to tell an operator. None of them can have executed anything. The event loop
makes and owns the sockets: handing it one of ours would leave two owners of a descriptor if the peer hangs up just then.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from taskgate import clock
from taskgate.mcp.addresses import is_public_address
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.connection import Connection
from taskgate.mcp.http.target import Origin
from taskgate.mcp.http.tls import TlsLayer

_Wire = TypeVar("_Wire", bound=asyncio.Protocol)
ConnectionFactory = Callable[[], Connection]


async def open_connection(
    origin: Origin, factory: ConnectionFactory, *, context: ssl.SSLContext | None, until: float
) -> Connection:
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


async def _connect_unix(path: str, until: float, factory: ConnectionFactory) -> Connection:
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
