"""Durable events by caller, in order, each with its own id.

A caller with an identity has one stream of events per conversation (`core.identity.conversation`); here `caller` is the name of
such a stream. Events of a stream are numbered without gaps, in the order of the commits. A reader that remembers one number
therefore misses no event, sees none twice, and can compute how many were deleted before it read them. `keep_events` sets how many
are retained per caller and for how long. Events of sessions that need not survive the process are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

KEPT_EVENTS: Final = 1_000
KEPT_EVENTS_MS: Final = 30 * 60_000


class StoredEvent(msgspec.Struct, frozen=True):
    """One event. `number` orders it among the caller's events, `id` is the ULID that callers see."""

    number: int
    id: str
    caller: str
    kind: str
    server: str
    at_ms: int
    data: Mapping[str, Any]


class EventPage(msgspec.Struct, frozen=True):
    """Events after a position. `lost` is the number of events that were deleted before they were read."""

    events: tuple[StoredEvent, ...]
    lost: int
    last: int


class EventOutbox(Protocol):
    """Durable events by caller."""

    def keep_events(self, maximum: int, for_ms: int) -> None:
        """Set how many events are retained per caller, and for how long."""
        ...

    async def append_event(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        """Append an event that is not a change of a task; a change appends its own."""
        ...

    async def events_after(self, caller: str, number: int, limit: int | None = None) -> EventPage:
        """Return at most `limit` events; by default all that are retained."""
        ...

    async def streams_of(self, caller: str) -> tuple[str, ...]:
        """Return the names of all stored streams of a caller's conversations."""
        ...

    async def cursor(self, caller: str) -> int:
        """Return the number of the last event that was delivered to this caller; 0 if there is none."""
        ...

    def move_cursor(self, caller: str, number: int) -> None:
        """Record a delivery with the next commit. The cursor never moves back."""
        ...
