"""Where a connection came from: the address that limits for anonymous callers are kept by, and whether it is this machine.

Behind a proxy that the operator trusts (`listen.trusted_proxies`) the address is the one that the proxy saw, taken from the right
end of `X-Forwarded-For`: everything further left was written by whoever came before. IPv6 callers own a whole /64, so that is what
counts as one address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from taskgate.doors.http.guard import arrived_on_loopback

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


class Arrivals:
    def __init__(self, trusted_proxies: Iterable[str]) -> None:
        self._trusted: tuple[Network, ...] = tuple(
            ipaddress.ip_network(proxy, strict=False) for proxy in trusted_proxies
        )

    def of(self, transport: Any) -> Arrival:
        peer = transport.get_extra_info("peername")
        near = arrived_on_loopback(transport.get_extra_info("sockname"))
        address = _read(str(peer[0])) if isinstance(peer, tuple) else None
        if address is None:
            return Arrival(LOCAL, near, False)
        return Arrival(address_key(address), near, self._trusts(address))

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
