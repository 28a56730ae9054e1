"""URIs of interfaces (`ui://`) and skills (`skill://`) that several servers may use for different things.

A URI is unchanged while only one server uses it. If several do, each gets a *named* URI with the server in front:
`ui://clock/app.html` of the server `b` is `ui://b.taskgate/clock/app.html`. The named form depends only on server and
URI, so it means the same in every gateway at any time. A URI that was returned unchanged stays assigned to that server,
because a client may have stored it. The URI that a server itself uses is its *own* URI; rules and pins use that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

SUFFIX: Final = ".taskgate"
OWN_PREFIX: Final = "ui://taskgate/"
"""Prefix of the gateway's own interfaces."""
_NAMED: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([A-Za-z0-9_-]+)\.taskgate/(.+)", re.DOTALL)
_HIERARCHY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")


class Address(NamedTuple):
    """A resource by the URI of its own server."""

    server: str
    uri: str


def named_address(server: str, uri: str) -> str:
    """Return the URI with its server in front. Only for URIs of the form `scheme://...`."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{server}{SUFFIX}/{rest}"


def read_named(uri: str) -> Address | None:
    """Return the server and the own URI of a named URI; None for any other."""
    found = _NAMED.fullmatch(uri)
    return Address(found[2], found[1] + found[3]) if found is not None else None


def own_address(server: str, uri: str) -> str:
    """Return the server's own URI of a resource that its callers know as `uri`."""
    found = read_named(uri)
    return found.uri if found is not None and found.server == server else uri


def is_reserved(uri: str) -> bool:
    """Whether the URI has a meaning in the gateway, so that no server can use it unchanged."""
    return uri.startswith(OWN_PREFIX) or read_named(uri) is not None


def can_be_named(uri: str) -> bool:
    return _HIERARCHY.match(uri) is not None


Overlap = Callable[[str], Iterable[str]]
"""Returns the URIs that overlap with a URI because they are equal to it or contain it."""


def only_itself(address: str) -> tuple[str, ...]:
    """For separate resources: two overlap if they are equal."""
    return (address,)


def folders_above(root: str) -> tuple[str, ...]:
    """For folders: two overlap if one contains the other."""
    scheme, mark, path = root.partition("://")
    parts = path.split("/")
    return tuple(f"{scheme}{mark}{'/'.join(parts[:end])}" for end in range(1, len(parts) + 1))


class Claims(msgspec.Struct, frozen=True):
    """Which servers use which URIs. `held`: the server to which a URI was assigned unchanged before."""

    by_server: Mapping[str, Iterable[str]]
    held: Mapping[str, str]
    above: Overlap = only_itself

    def renamed(self) -> frozenset[Address]:
        """Return those that are shown under their named URI, because another server uses or was assigned an overlapping
        one.
        """
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
