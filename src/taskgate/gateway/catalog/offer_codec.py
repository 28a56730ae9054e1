"""Encode an offer for the store, and decode it."""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.entry import EntryKind, read_entries
from taskgate.core.errors import TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.offer import Offer, OmittedTools
from taskgate.mcp.json_errors import UNDECODABLE


class _Kept(msgspec.Struct):
    entries: dict[str, list[Raw]]
    capabilities: dict[str, Any]
    instructions: str | None
    generation: str | None
    notes: list[str]
    omitted: list[str] = []
    cut: bool = False


_read_kept = msgspec.json.Decoder(_Kept).decode


def to_bytes(offer: Offer) -> bytes:
    generation = offer.generation.value if offer.generation is not None else None
    entries = {kind.value: [Raw(bytes(entry.raw)) for entry in found] for kind, found in offer.entries.items()}
    return wire.encode(
        _Kept(
            entries=entries,
            capabilities=dict(offer.capabilities),
            instructions=offer.instructions,
            generation=generation,
            notes=list(offer.notes),
            omitted=sorted(offer.omitted.names),
            cut=offer.omitted.cut,
        ),
    )


def from_bytes(server: str, body: bytes, listed_ms: int) -> Offer | None:
    """Return None if the bytes cannot be decoded; the lists are then fetched."""
    try:
        kept = _read_kept(body)
        entries = {
            EntryKind(kind): tuple(read_entries(EntryKind(kind), server, Raw(wire.encode(found))))
            for kind, found in kept.entries.items()
        }
        generation = Generation(kept.generation) if kept.generation is not None else None
    except (ValueError, TaskgateError, *UNDECODABLE):
        return None
    omitted = OmittedTools(frozenset(kept.omitted), kept.cut)
    notes = tuple(kept.notes)
    return Offer(
        entries=entries,
        capabilities=kept.capabilities,
        instructions=kept.instructions,
        generation=generation,
        listed_ms=listed_ms,
        notes=notes,
        omitted=omitted,
    )
