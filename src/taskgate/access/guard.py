"""Check Host and Origin, so that web pages of other sites cannot reach the gateway through a browser (DNS rebinding)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_FORWARDING: Final = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
"""Headers that a reverse proxy adds: what it forwards may come from any machine, though its connection is local."""


class Guard:
    """Allows loopback names and configured names, with a cache of accepted header values.

    If no identity is required (`open_to_all`), loopback names are accepted on loopback connections only, in requests that no
    proxy has forwarded: elsewhere they come from a proxy, a port mapping or an attacker.
    """

    def __init__(
        self, hosts: Iterable[str], origins: Iterable[str], open_to_all: bool, near: Iterable[str] = ()
    ) -> None:
        """`near`: further names of this machine, which are treated like loopback names."""
        named = [host.lower() for host in hosts]
        self._local = _Hosts((*LOOPBACK, *near, *named))
        self._remote = _Hosts(named) if open_to_all else self._local
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def refuses(self, headers: dict[bytes, bytes], on_loopback: bool) -> int | None:
        """Return the HTTP status of the rejection, or None if the request is allowed."""
        hosts = self._local if is_near(headers, on_loopback) else self._remote
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is None or not hosts.allow(host):
            return 421
        return 403 if origin is not None and not self._is_allowed_origin(hosts, origin) else None

    def _is_allowed_origin(self, hosts: _Hosts, origin: bytes) -> bool:
        text = origin.decode("latin-1").lower().rstrip("/")
        if text in self._origins or "*" in self._origins:
            return True
        try:
            parts = urlsplit(text)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and hosts.name(host_alone(parts.netloc))


def is_near(headers: dict[bytes, bytes], on_loopback: bool) -> bool:
    """Return whether a request comes from this machine: its connection does, and no proxy forwarded it."""
    return on_loopback and _FORWARDING.isdisjoint(headers)


class _Hosts:
    """Allowed host names, with the accepted header values."""

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
        good = "*" in self._names or text in self._names or host_alone(text) in self._names
        if good and len(self._seen) < 64:
            self._seen.add(host)
        return good


def host_alone(host: str) -> str:
    """Return the name without the port. Anything else after the name is kept, so that it matches nothing."""
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        return host
    return name if not port or (port.isascii() and port.isdigit()) else host
