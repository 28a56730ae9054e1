"""Where requests go, and opening a connection there: resolve, connect, TLS, each with its own name when it fails."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from taskgate import clock
from taskgate.mcp.addresses import is_public_address
from taskgate.mcp.failures import Executed, HttpFailure, Stage
from taskgate.mcp.http.connection import NO_ANSWER, HttpConnection, reason_of

_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROLS = bytes([*range(9), *range(10, 32), 127])
# The client frames messages and connections itself and does not unpack bodies.
_OURS = frozenset(
    {
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"expect",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_BODILESS = frozenset({b"GET", b"DELETE", b"OPTIONS"})


class Origin(NamedTuple):
    """Whom a connection leads to; connections are shared by all targets of one origin."""

    tls: bool
    host: str
    """A name or an address; a path is that of a Unix socket."""
    port: int
    public_only: bool = False
    """Only addresses of the open internet are connected to; such connections are not shared with others."""


@dataclass(frozen=True, slots=True)
class Target:
    """One URL with its fixed headers, ready to be asked."""

    origin: Origin
    path: bytes
    fixed: bytes
    _heads: dict[bytes, bytes] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str] | None = None, *, public_only: bool = False) -> Target:
        """Raises ValueError for anything that is not a plain http or https address or a clean header."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(
                f"an upstream address must begin with http:// or https://, not {parts.scheme or url[:12]!r}"
            )
        if parts.username is not None or parts.password is not None:
            raise ValueError("an upstream address must not hold a user name or password; set a header instead")
        if not parts.hostname:
            raise ValueError("an upstream address needs a host name")
        tls = parts.scheme == "https"
        host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode("ascii")
        port = parts.port or (443 if tls else 80)
        origin = Origin(tls, host, port, public_only)
        return cls(origin, _render_path(parts), _render_fixed(host, port, tls, headers or {}))

    def at(self, url: str) -> Target:
        """The same fixed headers at another address of the same origin; an absolute or a relative URL."""
        parts = urllib.parse.urlsplit(url)
        base = f"{'https' if self.origin.tls else 'http'}://{_bracket(self.origin.host)}:{self.origin.port}"
        whole = urllib.parse.urljoin(base + self.path.decode("ascii"), url)
        other = Target.parse(whole, public_only=self.origin.public_only)
        if (parts.netloc or parts.scheme) and other.origin != self.origin:
            raise ValueError("the other address has another origin")
        return Target(self.origin, other.path, self.fixed)

    def render(self, method: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
        """The whole request as it goes to the wire."""
        head = self._heads.get(method)
        if head is None:
            head = self._render_head(method)
        varying = _render_headers(headers if type(headers) is tuple else tuple(headers)) if headers else b""
        if body or method not in _BODILESS:
            return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, varying, len(body), body)
        return b"%b%b\r\n" % (head, varying)

    def _render_head(self, method: bytes) -> bytes:
        if not method.isalpha() or method in (b"HEAD", b"CONNECT"):
            raise ValueError(f"the method {method!r} cannot be used here")
        head = self._heads[method] = b"%b %b HTTP/1.1\r\n%b" % (method, self.path, self.fixed)
        return head


class PreparedTarget(Target):
    """One request that somebody else has rendered, every byte of it."""

    __slots__ = ()

    def __init__(self, origin: Origin, request: bytes) -> None:
        super().__init__(origin, b"", request)

    def render(self, method: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
        return self.fixed


def check_header(name: bytes, value: bytes) -> None:
    """Refuses what would break the head apart: a name that is no token, control characters in a value."""
    if not name or name.translate(None, _TOKEN):
        raise ValueError(f"{name!r} is not a header name")
    if len(value.translate(None, _CONTROLS)) != len(value):
        raise ValueError(f"the value of header {name.decode('ascii')} holds a control character")


@lru_cache(maxsize=512)
def _render_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Checked and joined. Most calls of an upstream carry the same few headers, hence the memory."""
    for name, value in headers:
        check_header(name, value)
    return b"".join(b"%b: %b\r\n" % header for header in headers)


def _render_path(parts: urllib.parse.SplitResult) -> bytes:
    path = urllib.parse.quote(parts.path or "/", safe=_PATH_SAFE)
    if parts.query:
        path += "?" + urllib.parse.quote(parts.query, safe=_PATH_SAFE + "?")
    return path.encode("ascii")


def _render_fixed(host: str, port: int, tls: bool, headers: Mapping[str, str]) -> bytes:
    rendered: dict[bytes, bytes] = {}
    for name, value in headers.items():
        raw_name, raw_value = name.encode("latin-1", "replace"), value.strip().encode("utf-8")
        check_header(raw_name, raw_value)
        if raw_name.lower() in _OURS:
            raise ValueError(f"the header {name} is set by Taskgate itself")
        if raw_name.lower() in rendered:
            raise ValueError(f"the header {name} is given twice")
        rendered[raw_name.lower()] = b"%b: %b\r\n" % (raw_name, raw_value)
    authority = _bracket(host) if port == (443 if tls else 80) else f"{_bracket(host)}:{port}"
    own = rendered.pop(b"host", b"Host: %b\r\n" % authority.encode("ascii"))
    agent = rendered.pop(b"user-agent", b"User-Agent: taskgate\r\n")
    return own + agent + b"".join(rendered.values())


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# Opening a connection: resolve, connect, TLS, each with its own name when it fails.
#
# The steps are taken one by one, not by a single library call, because "the name does not exist", "nobody listens" and
# "that is not TLS" are three different things to tell an operator. None of them can have executed anything. The event
# loop makes and owns the sockets: handing it one of ours would leave two owners of a descriptor if the peer hangs up
# just then.
#
# TLS is spoken by the standard library over memory. The event loops bring TLS of their own, but theirs hides how much
# of a request still waits to be sent; here the connection hears `pause_writing` and `resume_writing` of the real
# socket.

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
        raise _refuse(Stage.TLS, "no TLS handshake in time", NO_ANSWER) from None
    except OSError as error:
        raise _refuse(Stage.TLS, f"the TLS handshake failed: {error}", reason_of(error)) from error
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
        raise _refuse(Stage.RESOLVE, "the name was not resolved in time", NO_ANSWER) from None
    except (OSError, UnicodeError) as error:
        raise _refuse(Stage.RESOLVE, f"the name was not resolved: {error}", reason_of(error)) from error
    return [str(address[0]) for _, _, _, _, address in found]


async def _connect_first(
    addresses: list[str], port: int, until: float, factory: Callable[[], _Wire]
) -> tuple[asyncio.Transport, _Wire]:
    """Try each address with a fair share of the time left, so that one silent address does not use it all."""
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
    raise _refuse(Stage.CONNECT, f"could not connect: {problem}", reason)


async def _connect_unix(path: str, until: float, factory: ConnectionFactory) -> HttpConnection:
    try:
        async with asyncio.timeout_at(until):
            _, connection = await asyncio.get_running_loop().create_unix_connection(factory, path)
            return connection
    except TimeoutError:
        raise _refuse(Stage.CONNECT, f"could not connect: {NO_ANSWER}", NO_ANSWER) from None
    except OSError as error:
        raise _refuse(Stage.CONNECT, f"could not connect: {error}", reason_of(error)) from error


def _refuse(stage: Stage, message: str, reason: str = "") -> HttpFailure:
    return HttpFailure(stage, message, Executed.NO, reason=reason)
