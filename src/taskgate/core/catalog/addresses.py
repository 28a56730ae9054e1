"""Addresses of interfaces (`ui://`) and skills (`skill://`) that several servers may use for different things.

An address passes unchanged while one server alone uses it. Where several do, each gets a *named* address, which has the
server in front: `ui://clock/app.html` of the server `b` is `ui://b.taskgate/clock/app.html`. The named form follows
from server and address alone, so it means the same in every gateway and at any time. An address that was handed out
unchanged stays that server's: a client may hold it. What a resource is called by its own server is its *own* address;
rules and pins know it by that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

SUFFIX: Final = ".taskgate"
OURS: Final = "ui://taskgate/"
"""Where the gateway's own interfaces are."""
_NAMED: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([A-Za-z0-9_-]+)\.taskgate/(.+)", re.DOTALL)
_HIERARCHY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")


class Address(NamedTuple):
    """A resource as its own server knows it."""

    server: str
    uri: str


def named_address(server: str, uri: str) -> str:
    """The address that has its server in front. Only for URIs of the form `scheme://...`."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{server}{SUFFIX}/{rest}"


def read_named(uri: str) -> Address | None:
    """The server and the own address in a named address; None for any other."""
    found = _NAMED.fullmatch(uri)
    return Address(found[2], found[1] + found[3]) if found is not None else None


def own_address(server: str, uri: str) -> str:
    """What a server calls the resource that its callers know by `uri`."""
    found = read_named(uri)
    return found.uri if found is not None and found.server == server else uri


def is_reserved(uri: str) -> bool:
    """Whether the address has a meaning of its own in the gateway, so that no server can be given it unchanged."""
    return uri.startswith(OURS) or read_named(uri) is not None


def can_be_named(uri: str) -> bool:
    return _HIERARCHY.match(uri) is not None


Overlap = Callable[[str], Iterable[str]]
"""The addresses at and above an address that mean the same thing or hold it."""


def itself(address: str) -> tuple[str, ...]:
    """For resources that stand alone: two overlap if they are equal."""
    return (address,)


def folders_above(root: str) -> tuple[str, ...]:
    """For folders: two overlap if one is in the other."""
    scheme, mark, path = root.partition("://")
    parts = path.split("/")
    return tuple(f"{scheme}{mark}{'/'.join(parts[:end])}" for end in range(1, len(parts) + 1))


@dataclass(frozen=True, slots=True)
class Claims:
    """Which servers use which addresses. `held` is who was given an address unchanged before."""

    by_server: Mapping[str, Iterable[str]]
    held: Mapping[str, str]
    above: Overlap = itself

    def renamed(self) -> frozenset[Address]:
        """Those that are shown under their named address, because another server uses or was given an overlapping one."""
        at: dict[str, set[str]] = {}
        below: dict[str, set[str]] = {}
        users = [(server, uri) for server, uris in self.by_server.items() for uri in uris]
        for server, uri in (*users, *((server, uri) for uri, server in self.held.items())):
            at.setdefault(uri, set()).add(server)
            for folder in self.above(uri):
                below.setdefault(folder, set()).add(server)
        return frozenset(
            Address(server, uri)
            for server, uri in users
            if can_be_named(uri)
            and (is_reserved(uri) or (self.held.get(uri) != server and self._has_rivals(server, uri, at, below)))
        )

    def _has_rivals(self, server: str, uri: str, at: Mapping[str, set[str]], below: Mapping[str, set[str]]) -> bool:
        alone = {server}
        return below[uri] != alone or any(at.get(folder, alone) != alone for folder in self.above(uri))
