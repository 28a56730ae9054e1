"""The origin of a connection: its address, whether a trusted proxy opened it, and the names in the client's certificate."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from taskgate import clock
from taskgate.access.client_certificates import expiry_of, names_in_certificate, names_in_header, thumbprint_of

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LOCAL: Final = "local"
"""The address of callers on a Unix socket."""
_FORWARDED: Final = b"x-forwarded-for"
_MAX_HOPS: Final = 32
_KNOWN: Final = 4096
"""Addresses whose parsed form is remembered: most connections come from a few, and parsing one takes longer than the rest."""


class Arrival(msgspec.Struct, frozen=True):
    """What is known about a connection before its first request."""

    address: str
    on_loopback: bool
    by_proxy: bool
    """Whether a trusted proxy opened it, so that callers are distinguished by the address that it forwards."""
    certificate: tuple[str, ...] = ()
    """The names in the client's certificate, which the TLS library has verified."""
    certificate_expiry: clock.Expiry | None = None
    """When the certificate expires. TLS checks that once, but a connection may stay open longer."""
    thumbprint: str = ""
    """The SHA-256 of the certificate, to which tokens may be bound."""


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
        certificate = transport.get_extra_info("peercert")
        names = names_in_certificate(certificate)
        thumbprint = thumbprint_of(transport.get_extra_info("ssl_object")) if certificate else ""
        by_proxy = self._trusts(address)
        return Arrival(
            address=address_key(address),
            on_loopback=near,
            by_proxy=by_proxy,
            certificate=names,
            certificate_expiry=expiry_of(certificate),
            thumbprint=thumbprint,
        )

    def certificate_names(self, arrival: Arrival, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
        """Return the names of the certificate shown to the gateway or to a trusted proxy. Other peers' headers are ignored."""
        if not arrival.by_proxy or self._certificate_header is None:
            return arrival.certificate
        given = [value for name, value in headers if name == self._certificate_header]
        return names_in_header(given[0]) if len(given) == 1 else ()

    def certificate_expiry(self, arrival: Arrival) -> clock.Expiry | None:
        """Return when the certificate of `certificate_names` expires; None if a proxy verified it, which sends no expiry."""
        return None if arrival.by_proxy and self._certificate_header is not None else arrival.certificate_expiry

    def certificate_thumbprint(self, arrival: Arrival) -> str:
        """Return the thumbprint of the caller's certificate; empty if the gateway has not seen it, as behind a proxy."""
        return "" if arrival.by_proxy else arrival.thumbprint

    def caller_address(self, arrival: Arrival, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the address under which an anonymous caller is counted."""
        if not arrival.by_proxy:
            return arrival.address
        given = b",".join(value for name, value in headers if name == _FORWARDED).decode("latin-1")
        for hop in reversed(given.split(",")[-_MAX_HOPS:]):
            address = _read(_without_port(hop.strip()))
            if address is None:
                break
            if not self._trusts(address):
                return address_key(address)
        return arrival.address

    def _trusts(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._trusted)


@lru_cache(maxsize=_KNOWN)
def address_key(address: Address) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


@lru_cache(maxsize=_KNOWN)
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


@lru_cache(maxsize=_KNOWN)
def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address. Names other than localhost are not."""
    if address == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def arrived_on_loopback(sockname: Any) -> bool:
    """Return whether a connection with this local address is from the same machine. Unix sockets always are."""
    if isinstance(sockname, tuple):
        return is_loopback(str(sockname[0]))
    return True
