"""The addresses of interfaces and skills of servers in one view.

`core.catalog.addresses` has the rule. Addresses that were shown unchanged are remembered for each scope, so that another server
with the same address cannot replace them later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from taskgate.core.catalog.addresses import Address, Claims, folders_above, named_address, read_named
from taskgate.core.catalog.apps import UI_SCHEME
from taskgate.core.catalog.entry import CatalogEntry

SKILL_SCHEME: Final = "skill://"
MAX_HELD: Final = 20_000


class HeldAddresses:
    """The server of each address that callers of a scope received unchanged. Keeps the latest `MAX_HELD`."""

    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[str, str], str] = OrderedDict()

    def of(self, scope: str) -> dict[str, str]:
        return {uri: server for (holder, uri), server in self._servers.items() if holder == scope}

    def keep(self, scope: str, given: Iterable[Address]) -> None:
        for server, uri in given:
            self._servers[scope, uri] = server
            self._servers.move_to_end((scope, uri))
        while len(self._servers) > MAX_HELD:
            self._servers.popitem(last=False)

    def forget(self, scopes: frozenset[str]) -> None:
        for key in [key for key in self._servers if key[0] in scopes]:
            del self._servers[key]


class ShownAddresses:
    """The addresses of one view. `interfaces` (declared by tools or listed) and `skills` (folders) are the servers' own addresses,
    by server.
    """

    def __init__(
        self,
        interfaces: Mapping[str, frozenset[str]],
        skills: Mapping[str, frozenset[str]],
        held: Mapping[str, str],
        refused: frozenset[Address],
    ) -> None:
        self.interfaces = interfaces
        self.skills = skills
        self.held = held
        self.refused = refused
        """Interfaces that rules or pins keep from the callers of this view."""

    @cached_property
    def _renamed(self) -> frozenset[Address]:
        return Claims(self.interfaces, self.held).renamed()

    @cached_property
    def _renamed_folders(self) -> frozenset[Address]:
        return Claims(self.skills, self.held, folders_above).renamed()

    @cached_property
    def _plain(self) -> dict[str, str]:
        """The server of each address that is shown unchanged."""
        return {uri: server for server, uri in self.unchanged()}

    def unchanged(self) -> list[Address]:
        """Return the addresses that callers get exactly as the server has them."""
        used = ((self.interfaces, self._renamed), (self.skills, self._renamed_folders))
        return [
            Address(server, uri)
            for addresses, renamed in used
            for server, uris in addresses.items()
            for uri in uris
            if Address(server, uri) not in renamed
        ]

    @property
    def any_renamed(self) -> bool:
        return bool(self._renamed or self._renamed_folders)

    def shown(self, server: str, uri: str) -> str:
        """Return the address under which callers see a resource of this server."""
        if Address(server, uri) in self._renamed:
            return named_address(server, uri)
        if self._renamed_folders and any(Address(server, at) in self._renamed_folders for at in folders_above(uri)):
            return named_address(server, uri)
        return uri

    def of_entry(self, entry: CatalogEntry) -> str:
        return self.shown(entry.server, entry.name) if self.any_renamed else entry.name

    def shown_interfaces(self, server: str) -> dict[str, str | None]:
        """Return the interfaces of this server with a different address for callers; None if callers get no address."""
        renamed: dict[str, str | None] = {a.uri: named_address(*a) for a in self._renamed if a.server == server}
        return renamed | {a.uri: None for a in self.refused if a.server == server}

    def is_ambiguous(self, uri: str) -> bool:
        """Return whether several servers use this address, so that it refers to none of them."""
        if not self.any_renamed or self.owner(uri) is not None:
            return False
        above = frozenset(folders_above(uri))
        return any(a.uri == uri for a in self._renamed) or any(a.uri in above for a in self._renamed_folders)

    def owner(self, uri: str) -> Address | None:
        """Return the interface, or the file or folder of a skill, that an address refers to."""
        found = read_named(uri)
        if found is not None:
            return found if self._may_belong_to_server(found) else None
        if not self._plain:
            return None
        for at in (uri, *reversed(folders_above(uri)[:-1])):
            server = self._plain.get(at)
            if server is not None and (at == uri or at in self.skills.get(server, ())):
                return Address(server, uri)
        return None

    def _may_belong_to_server(self, found: Address) -> bool:
        if found.uri.startswith((UI_SCHEME, SKILL_SCHEME)):
            return True
        return not self.skills.get(found.server, frozenset()).isdisjoint(folders_above(found.uri))
