"""Host and Origin of requests: web pages of other sites must not reach the gateway through a browser on this network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Allows loopback names and whatever the operator adds; answers from a cache of header values seen.

    Where no identity is required (`open_to_all`) the loopback names are good only for connections that arrived on a loopback
    address: from anywhere else they were made up by a proxy, a port mapping or an attacker.
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


def _host_alone(host: str) -> str:
    """The name alone; a host with anything but a port behind its name stays as it is, and so matches nothing."""
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        return host
    return name if not port or (port.isascii() and port.isdigit()) else host
