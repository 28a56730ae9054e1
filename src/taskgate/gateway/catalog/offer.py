"""What one upstream offers: its lists as they were last fetched, and what it says of itself.

The lists of one upstream are fetched apart and fail apart: a list that could not be fetched keeps the entries of the time before,
and `failed` says why. `to_bytes` and `from_bytes` are the form in which the store keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry, EntryKind, read_entries
from taskgate.core.errors import TaskgateError
from taskgate.core.generations import Generation
from taskgate.core.wire import Raw


class ListMethod(msgspec.Struct, frozen=True):
    """How one kind of entry is asked for: the capability it needs, the method, and where the entries are in the result."""

    capability: str
    method: str
    key: str


LISTS: Final[Mapping[EntryKind, ListMethod]] = {
    EntryKind.TOOL: ListMethod("tools", "tools/list", "tools"),
    EntryKind.PROMPT: ListMethod("prompts", "prompts/list", "prompts"),
    EntryKind.RESOURCE: ListMethod("resources", "resources/list", "resources"),
    EntryKind.TEMPLATE: ListMethod("resources", "resources/templates/list", "resourceTemplates"),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """`listed_ms` is when the server was last asked (0: never), `ttl_s` for how long it says that its lists are good."""

    entries: Mapping[EntryKind, tuple[CatalogEntry, ...]]
    capabilities: Mapping[str, Any]
    instructions: str | None = None
    generation: Generation | None = None
    listed_ms: int = 0
    ttl_s: float | None = None
    notes: tuple[str, ...] = ()
    failed: Mapping[EntryKind, TaskgateError] = field(default_factory=dict)
    complete: bool = True
    """Whether every list has come or failed; else the rest follows."""

    @property
    def announces_changes(self) -> bool:
        """Whether the server says by itself when any of the lists that it has changes."""
        offered = (self.capabilities.get(how.capability) for kind, how in LISTS.items() if kind in self.entries)
        return all(isinstance(each, Mapping) and each.get("listChanged") is True for each in offered)

    def counts(self) -> dict[str, int]:
        return {how.key: len(self.entries[kind]) for kind, how in LISTS.items() if kind in self.entries}


def difference(before: Offer | None, after: Offer) -> frozenset[EntryKind]:
    """The lists that are not what they were, as callers would see them."""
    if before is None:
        return frozenset(after.entries)
    kinds = {*before.entries, *after.entries}
    if before.capabilities.get("tasks") != after.capabilities.get("tasks"):
        # What every tool shows about tasks depends on it.
        return frozenset(kinds)
    return frozenset(kind for kind in kinds if _bytes(before, kind) != _bytes(after, kind))


def same(before: Offer | None, after: Offer) -> bool:
    """Whether nothing that anybody is shown or told has changed: lists, capabilities of any kind, instructions."""
    if before is None or before.capabilities != after.capabilities or before.instructions != after.instructions:
        return False
    return before.generation is after.generation and before.notes == after.notes and not difference(before, after)


def _bytes(offer: Offer, kind: EntryKind) -> list[bytes] | None:
    entries = offer.entries.get(kind)
    return None if entries is None else [bytes(entry.raw) for entry in entries]


class _Kept(msgspec.Struct):
    entries: dict[str, list[msgspec.Raw]]
    capabilities: dict[str, Any]
    instructions: str | None
    generation: str | None
    notes: list[str]


_read_kept = msgspec.json.Decoder(_Kept).decode


def to_bytes(offer: Offer) -> bytes:
    generation = offer.generation.value if offer.generation is not None else None
    entries = {kind.value: [Raw(bytes(entry.raw)) for entry in found] for kind, found in offer.entries.items()}
    return wire.encode(
        _Kept(entries, dict(offer.capabilities), offer.instructions, generation, list(offer.notes)),
    )


def from_bytes(server: str, body: bytes, listed_ms: int) -> Offer | None:
    """None if the bytes cannot be read: then the server is simply asked."""
    try:
        kept = _read_kept(body)
        entries = {
            EntryKind(kind): tuple(read_entries(EntryKind(kind), server, Raw(wire.encode(found))))
            for kind, found in kept.entries.items()
        }
        generation = Generation(kept.generation) if kept.generation is not None else None
    except (msgspec.MsgspecError, ValueError, TaskgateError):
        return None
    return Offer(entries, kept.capabilities, kept.instructions, generation, listed_ms, notes=tuple(kept.notes))
