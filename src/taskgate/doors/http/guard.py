"""Host and Origin checks: a web page must not be able to talk to a gateway on loopback through someone's browser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Allows loopback names and whatever the operator adds; answers from a cache of header values seen."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._good_hosts: set[bytes] = set()

    def refuses(self, headers: dict[bytes, bytes]) -> int | None:
        """The HTTP status to refuse with, or None."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host in self._good_hosts and origin is None:
            return None
        if host is None or not self._good_host(host):
            return 421
        return 403 if origin is not None and not self._good_origin(origin) else None

    def _good_host(self, host: bytes) -> bool:
        text = host.decode("latin-1").lower()
        good = "*" in self._hosts or text in self._hosts or _without_port(text) in self._hosts
        if good and len(self._good_hosts) < 64:
            self._good_hosts.add(host)
        return good

    def _good_origin(self, origin: bytes) -> bool:
        text = origin.decode("latin-1").lower().rstrip("/")
        if text in self._origins or "*" in self._origins:
            return True
        try:
            parts = urlsplit(text)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and _without_port(parts.netloc) in self._hosts


def _without_port(host: str) -> str:
    """The name alone; a host with anything but a port behind its name stays as it is, and so matches nothing."""
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        return host
    return name if port.isdigit() or not port else host
