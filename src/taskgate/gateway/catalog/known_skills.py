"""Map a server's URIs to its skills: from its lists, and from entries that were fetched separately since.

URIs are compared in normal form, so that another spelling is checked against the same digest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from taskgate.core.catalog.addresses import folders_above
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.skills import SkillFile
from taskgate.core.resource_uri import normal_form
from taskgate.gateway.catalog.catalogs import Catalogs, Offer

MAX_FETCHED: Final = 2_000


class PlaceInSkill(msgspec.Struct, frozen=True):
    """A URI in the folder of a skill; `file` is None if the skill's entry does not list it."""

    entry: CatalogEntry
    file: SkillFile | None


class _Fetched(msgspec.Struct, frozen=True):
    entry: CatalogEntry
    offer: Offer | None
    """The server's lists when the entry was fetched; later lists that have the skill replace it."""


class _Index(msgspec.Struct, frozen=True):
    """Index of the skills of one server for one revision of its lists."""

    offer: Offer | None
    entries: tuple[CatalogEntry, ...]
    files: Mapping[str, PlaceInSkill]
    roots: Mapping[str, CatalogEntry]
    resources: frozenset[str]

    def at(self, address: str) -> PlaceInSkill | None:
        """Return the skill of a URI: it lists the file, or the URI is in its folder and not a plain resource."""
        found = self.files.get(address)
        if found is not None or address in self.resources:
            return found
        entry = self.around(address.rpartition("/")[0])
        return PlaceInSkill(entry, None) if entry is not None and entry.skill.files is not None else None

    def around(self, folder: str) -> CatalogEntry | None:
        """Return the innermost skill that contains the folder."""
        innermost = next((above for above in reversed(folders_above(folder)) if above in self.roots), None)
        return self.roots[innermost] if innermost is not None else None


class KnownSkills:
    def __init__(self, catalogs: Catalogs) -> None:
        self._catalogs = catalogs
        self._indexes: dict[str, _Index] = {}
        self._fetched: OrderedDict[tuple[str, str], _Fetched] = OrderedDict()

    def keep(self, entry: CatalogEntry) -> None:
        """Add a separately fetched entry."""
        self._fetched[entry.server, entry.name] = _Fetched(entry, self._catalogs.offer(entry.server))
        self._fetched.move_to_end((entry.server, entry.name))
        self._indexes.pop(entry.server, None)
        while len(self._fetched) > MAX_FETCHED:
            (server, _), _ = self._fetched.popitem(last=False)
            self._indexes.pop(server, None)

    def at(self, server: str, uri: str) -> PlaceInSkill | None:
        """Return the skill that a URI of this server belongs to, and the listed file."""
        index = self._index(server)
        return index.at(normal_form(uri)) if index.entries else None

    def around(self, server: str, folder: str) -> CatalogEntry | None:
        """Return the skill that a folder of this server belongs to."""
        return self._index(server).around(normal_form(folder).rstrip("/"))

    def entries(self, server: str) -> tuple[CatalogEntry, ...]:
        """Return all known skills of this server."""
        return self._index(server).entries

    def _index(self, server: str) -> _Index:
        offer = self._catalogs.offer(server)
        known = self._indexes.get(server)
        if known is None or known.offer is not offer:
            known = self._indexes[server] = self._build(server, offer)
        return known

    def _build(self, server: str, offer: Offer | None) -> _Index:
        listed = {entry.name: entry for entry in offer.entries.get(EntryKind.SKILL, ())} if offer is not None else {}
        for key in [key for key, one in self._fetched.items() if key[0] == server and one.offer is not offer]:
            if key[1] in listed:
                del self._fetched[key]
        fetched = {uri: one.entry for (owner, uri), one in self._fetched.items() if owner == server}
        entries = tuple((listed | fetched).values())
        resources = offer.entries.get(EntryKind.RESOURCE, ()) if offer is not None and entries else ()
        return _Index(
            offer=offer,
            entries=entries,
            files={
                normal_form(file.uri): PlaceInSkill(entry, file)
                for entry in entries
                for file in entry.skill.files or ()
            },
            roots={normal_form(entry.skill.root).rstrip("/"): entry for entry in entries},
            resources=frozenset(normal_form(resource.name) for resource in resources),
        )
