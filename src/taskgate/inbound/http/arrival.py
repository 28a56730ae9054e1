"""Where a connection came from, TLS of the listener, and the few ASGI shapes we use."""

from __future__ import annotations

import ipaddress
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from taskgate.gateway.plan import Limits
from taskgate.telemetry.logs import log

# TLS of the listener: certificate and key, taken anew when their files change, and the names in a client's certificate.
#
# Modern defaults: TLS 1.2 at least, no compression, no renegotiation, the library's own choice of ciphers. A
# certificate that cannot be read while the gateway runs leaves the old one in force.

_KINDS: Final = {"DNS": "dns", "URI": "uri", "email": "email"}
MOST_NAMES: Final = 50


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """`client_ca`: who signs the certificates of clients; without it none is asked for."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    require_client_cert: bool = False


class _ModernContext(ssl.SSLContext):
    def __new__(cls, files: TlsFiles) -> _ModernContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: TlsFiles) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        self.set_alpn_protocols(["http/1.1"])
        if files.client_ca is not None:
            self.verify_mode = ssl.CERT_REQUIRED if files.require_client_cert else ssl.CERT_OPTIONAL


class ListenerTls:
    """One context for the life of the listener: new connections see what was loaded last."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises OSError and ssl.SSLError."""
        self._files = files
        self.context = _ModernContext(files)
        self._seen = self._stamps()
        self._load(self.context)

    def refresh(self) -> None:
        """Load what has changed on the disk. A half-written or wrong file is passed over until it changes again."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            # Tried apart first: a context with half of a pair loaded would refuse everybody.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except (OSError, ssl.SSLError) as fault:
            log.error("the listener's certificate was not taken anew; the old one stays in force", why=str(fault))
            return
        log.info("the listener's certificate was taken anew")

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._files.cert, self._files.key)
        if self._files.client_ca is not None:
            context.load_verify_locations(self._files.client_ca)

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        files = [self._files.cert, self._files.key, *([self._files.client_ca] if self._files.client_ca else [])]
        return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in (file.stat() for file in files))


def names_in_certificate(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """`dns:`, `uri:`, `email:` and `cn:` names of a client's certificate that the library has verified."""
    if not certificate:
        return ()
    names = [f"{_KINDS[kind]}:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    for part in certificate.get("subject", ()):
        names += [f"cn:{value}" for key, value in part if key == "commonName"]
    return tuple(names[:MOST_NAMES])


def names_in_header(value: bytes) -> tuple[str, ...]:
    """What a trusted proxy says of its client's certificate: a name of ours, or a subject such as `CN=agent,O=Example`."""
    said = value.decode("latin-1").strip()
    if said.startswith(("dns:", "uri:", "email:", "cn:")):
        return (said,)
    parts = (part.strip().partition("=") for part in said.split(","))
    found = [text for key, _, text in parts if key.upper() == "CN" and text]
    # More than one common name is nobody's: which one is meant cannot be told.
    return (f"cn:{found[0]}",) if len(found) == 1 else ()


LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Allows loopback names and whatever the operator adds; answers from a cache of header values seen.

    Where no identity is required (`open_to_all`) the loopback names are good only for connections that arrived on a loopback
    address: from anywhere else they are a lie that a proxy, a port mapping or an attacker tells.
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str], open_to_all: bool) -> None:
        named = [host.lower() for host in hosts]
        self._local = _Hosts((*LOOPBACK, *named))
        self._remote = _Hosts(named) if open_to_all else self._local
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def refuses(self, headers: dict[bytes, bytes], on_loopback: bool) -> int | None:
        """The HTTP status to refuse with, or None."""
        hosts = self._local if on_loopback else self._remote
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is None or not hosts.allow(host):
            return 421
        return 403 if origin is not None and not self._good_origin(hosts, origin) else None

    def _good_origin(self, hosts: _Hosts, origin: bytes) -> bool:
        text = origin.decode("latin-1").lower().rstrip("/")
        if text in self._origins or "*" in self._origins:
            return True
        try:
            parts = urlsplit(text)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and hosts.name(_host_alone(parts.netloc))


class _Hosts:
    """The names that a Host header may bear, with the header values found good so far."""

    __slots__ = ("_names", "_seen")

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._seen: set[bytes] = set()

    def name(self, host: str) -> bool:
        return host in self._names

    def allow(self, host: bytes) -> bool:
        if host in self._seen:
            return True
        text = host.decode("latin-1").lower()
        good = "*" in self._names or text in self._names or _host_alone(text) in self._names
        if good and len(self._seen) < 64:
            self._seen.add(host)
        return good


def is_loopback(address: str) -> bool:
    """Whether a listening or local address is this machine's own. A name other than localhost is not known to be."""
    if address == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def arrived_on_loopback(sockname: Any) -> bool:
    """Whether a connection with this local address came from the same machine; a Unix socket cannot do otherwise."""
    if isinstance(sockname, tuple):
        return is_loopback(str(sockname[0]))
    return True


def _host_alone(host: str) -> str:
    """The name alone; a host with anything but a port behind its name stays as it is, and so matches nothing."""
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        return host
    return name if not port or (port.isascii() and port.isdigit()) else host


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LOCAL: Final = "local"
"""Callers that came by a Unix socket."""
_FORWARDED: Final = b"x-forwarded-for"
_MOST_HOPS: Final = 32


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a connection before anything was said on it."""

    address: str
    on_loopback: bool
    by_proxy: bool
    """Whether a trusted proxy opened it, so that callers are told apart by what it forwards."""
    certificate: tuple[str, ...] = ()
    """The names in the client's certificate, which the TLS library has verified."""


class Arrivals:
    def __init__(self, trusted_proxies: Iterable[str], certificate_header: str | None) -> None:
        self._certificate_header = (certificate_header or "").lower().encode("latin-1") or None
        self._trusted: tuple[Network, ...] = tuple(
            ipaddress.ip_network(proxy, strict=False) for proxy in trusted_proxies
        )

    def of(self, transport: Any) -> Arrival:
        peer = transport.get_extra_info("peername")
        near = arrived_on_loopback(transport.get_extra_info("sockname"))
        address = _read(str(peer[0])) if isinstance(peer, tuple) else None
        if address is None:
            return Arrival(LOCAL, near, False)
        names = names_in_certificate(transport.get_extra_info("peercert"))
        return Arrival(address_key(address), near, self._trusts(address), names)

    def certificate_names(self, arrival: Arrival, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
        """Whose certificate a caller showed: to us, or to a trusted proxy. From anybody else a header says nothing."""
        if not arrival.by_proxy or self._certificate_header is None:
            return arrival.certificate
        said = [value for name, value in headers if name == self._certificate_header]
        return names_in_header(said[0]) if len(said) == 1 else ()

    def caller_address(self, arrival: Arrival, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Under which address an anonymous caller is counted."""
        if not arrival.by_proxy:
            return arrival.address
        said = b",".join(value for name, value in headers if name == _FORWARDED).decode("latin-1")
        for hop in reversed(said.split(",")[-_MOST_HOPS:]):
            address = _read(_without_port(hop.strip()))
            if address is None:
                break
            if not self._trusts(address):
                return address_key(address)
        return arrival.address

    def _trusts(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._trusted)


def address_key(address: Address) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


def _read(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


class OpenConnections:
    def __init__(self) -> None:
        self._total = 0
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._total

    def enter(self, arrival: Arrival, limits: Limits) -> bool:
        """Count a connection in, if there is room for it. A trusted proxy may have as many as there are."""
        alone = not arrival.by_proxy
        if self._total >= limits.connections:
            return False
        if alone and self._by_address[arrival.address] >= limits.connections_per_address:
            return False
        self._total += 1
        self._by_address[arrival.address] += 1
        return True

    def leave(self, arrival: Arrival) -> None:
        self._total -= 1
        self._by_address[arrival.address] -= 1
        if not self._by_address[arrival.address]:
            del self._by_address[arrival.address]


# The few ASGI shapes we use, and the smallest ways to answer.

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


async def respond(send: Send, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
    all_headers: Headers = [(b"content-length", b"%d" % len(body)), *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    await respond(send, status, body, [JSON, *(headers or ())])


class BodyTooLarge(Exception):
    """The request body went over the limit."""
