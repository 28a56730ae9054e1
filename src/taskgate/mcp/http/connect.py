"""Open a client connection: resolve the name, connect, and perform the TLS handshake.

Each step is separate and fails with its own `Stage`, because "no such name", "connection refused" and "not TLS" need
different actions by the operator. Nothing can have been executed at any of them. The event loop creates and owns the
sockets: with a socket of our own, two owners would hold the descriptor if the peer disconnects at that moment.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from taskgate import clock
from taskgate.mcp.addresses import is_public_address
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.connection import HttpConnection
from taskgate.mcp.http.target import Origin
from taskgate.mcp.http.tls_layer import TlsLayer

NO_ANSWER: Final = "no answer in time"
_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to it",
    errno.ENOENT: "no such socket",
    errno.EACCES: "access denied",
    errno.ETIMEDOUT: NO_ANSWER,
}
_CERTIFICATE_EXPIRED: Final = 10
_CERTIFICATE_MISMATCH: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def reason_of(error: OSError | UnicodeError) -> str:
    """Return why connecting failed, without naming an address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _CERTIFICATE_EXPIRED:
            return "TLS certificate expired"
        wrong = error.verify_code in _CERTIFICATE_MISMATCH
        return "TLS certificate of another host" if wrong else "TLS certificate not trusted"
    if isinstance(error, ssl.SSLError):
        return "TLS handshake failed"
    if isinstance(error, (UnicodeError, socket.gaierror)):
        return "no such name"
    return _BY_NUMBER.get(error.errno or 0, "")


_P = TypeVar("_P", bound=asyncio.Protocol)
ConnectionFactory = Callable[[], HttpConnection]


async def open_connection(
    origin: Origin, factory: ConnectionFactory, *, context: ssl.SSLContext | None, until: float
) -> HttpConnection:
    """Open a connection for its first exchange. `until` is a time of the loop. Raises HttpFailure."""
    if origin.host.startswith("/"):
        return await _connect_unix(origin.host, until, factory)
    addresses = await _resolve(origin, until)
    if origin.public_only and not all(map(is_public_address, addresses)):
        # The checked addresses are the ones connected to, so a later change of the DNS record has no effect.
        raise _failure(Stage.CONNECT, "the address is on this machine or in a private network, which is not allowed")
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
        raise _failure(Stage.TLS, "the TLS handshake timed out", NO_ANSWER) from None
    except OSError as error:
        raise _failure(Stage.TLS, f"the TLS handshake failed: {error}", reason_of(error)) from error
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
        raise _failure(Stage.RESOLVE, "resolving the name timed out", NO_ANSWER) from None
    except (OSError, UnicodeError) as error:
        raise _failure(Stage.RESOLVE, f"the name could not be resolved: {error}", reason_of(error)) from error
    return [str(address[0]) for _, _, _, _, address in found]


async def _connect_first(
    addresses: list[str], port: int, until: float, factory: Callable[[], _P]
) -> tuple[asyncio.Transport, _P]:
    """Try each address with an equal share of the remaining time, so that one unresponsive address cannot use all of it."""
    loop = asyncio.get_running_loop()
    problem, reason = "no address", ""
    for position, address in enumerate(addresses):
        share = (until - clock.monotonic()) / (len(addresses) - position)
        try:
            async with asyncio.timeout(share):
                return await loop.create_connection(factory, address, port)
        except TimeoutError:
            problem = reason = NO_ANSWER
        except OSError as error:
            problem, reason = str(error), reason_of(error)
    raise _failure(Stage.CONNECT, f"could not connect: {problem}", reason)


async def _connect_unix(path: str, until: float, factory: ConnectionFactory) -> HttpConnection:
    try:
        async with asyncio.timeout_at(until):
            _, connection = await asyncio.get_running_loop().create_unix_connection(factory, path)
            return connection
    except TimeoutError:
        raise _failure(Stage.CONNECT, f"could not connect: {NO_ANSWER}", NO_ANSWER) from None
    except OSError as error:
        raise _failure(Stage.CONNECT, f"could not connect: {error}", reason_of(error)) from error


def _failure(stage: Stage, message: str, reason: str = "") -> HttpFailure:
    return HttpFailure(stage, message, Executed.NO, reason=reason)
