"""Merge the lists of several servers into one catalog: in a fixed order, each entry under one name, with a note for each omission.

Servers are in the given order, entries in the order of their server. Tools and prompts are renamed by the name table.
Resources keep their URIs; if two servers list the same URI, the first one is used. What a caller may see is decided
before merging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.names import NameStyle, NameTable
from taskgate.core.catalog.own_tool_names import RESERVED_NAMES

MAX_PER_SERVER = 10_000


class Merged(msgspec.Struct, frozen=True):
    """One list of several. `entries` maps the name shown to callers (or the URI) to its entry; `notes` are warnings."""

    entries: Mapping[str, CatalogEntry]
    names: NameTable | None
    notes: tuple[str, ...]


def merge(
    kind: EntryKind,
    listed: Mapping[str, Iterable[CatalogEntry]],
    style: NameStyle = NameStyle.PREFIXED,
    *,
    reserved: Iterable[str] = RESERVED_NAMES,
    per_server: int = MAX_PER_SERVER,
    prefixes: Mapping[str, str] = MappingProxyType({}),
    address: Callable[[CatalogEntry], str] | None = None,
) -> Merged:
    """Merge the lists of one kind, given per server. `address` returns the URI that callers use for a resource."""
    notes: list[str] = []
    entries = [entry for server, found in listed.items() for entry in _bounded(kind, server, found, per_server, notes)]
    if kind in (EntryKind.TOOL, EntryKind.PROMPT):
        # The gateway has own tools, but no prompts.
        taken = reserved if kind is EntryKind.TOOL else ()
        names = NameTable.build([(entry.server, entry.name) for entry in entries], style, taken, prefixes)
        notes += [str(collision) for collision in names.refused]
        pairs = ((names.to_wire.get((entry.server, entry.name)), entry) for entry in entries)
        return Merged({wire: entry for wire, entry in pairs if wire is not None}, names, tuple(notes))
    return Merged(dict(_first_of_each(entries, notes, address or _own_name)), None, tuple(notes))


def _bounded(
    kind: EntryKind, server: str, found: Iterable[CatalogEntry], limit: int, notes: list[str]
) -> list[CatalogEntry]:
    kept: dict[str, CatalogEntry] = {}
    for entry in found:
        if entry.name in kept:
            notes.append(f"Server {server!r} lists the {kind.value} {entry.name[:80]!r} twice; the first one is used.")
        elif len(kept) >= limit:
            notes.append(f"Server {server!r} lists more than {limit} {kind.value}s; the rest is omitted.")
            break
        else:
            kept[entry.name] = entry
    return list(kept.values())


def _own_name(entry: CatalogEntry) -> str:
    return entry.name


def _first_of_each(
    entries: Iterable[CatalogEntry], notes: list[str], address: Callable[[CatalogEntry], str]
) -> Iterator[tuple[str, CatalogEntry]]:
    owners: dict[str, str] = {}
    for entry in entries:
        shown = address(entry)
        owner = owners.setdefault(shown, entry.server)
        if owner == entry.server:
            yield shown, entry
        else:
            notes.append(f"Both {owner!r} and {entry.server!r} offer {entry.name[:200]!r}; that of {owner!r} is used.")
