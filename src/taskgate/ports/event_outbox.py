"""Events that must outlive the process: what happened to a caller's tasks, in order, each with its own id.

A caller with an identity has a stream of events for each of its conversations (`core.conversation_key`); here `caller` is the
name of such a stream. Within one events are numbered without gaps, in the order in which they were committed. So a reader that
remembers one number misses nothing and sees nothing twice, and can tell exactly how many events it came too late
for. How many of them are kept per caller, and how long, is set by `keep_events`. Events of sessions that need not
survive are not the store's business.
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
    """Events after a position. `lost` counts those that were forgotten before this reader came."""

    events: tuple[StoredEvent, ...]
    lost: int
    last: int


class EventOutbox(Protocol):
    """Durable events by caller."""

    def keep_events(self, most: int, for_ms: int) -> None:
        """How many events of each caller are kept, and how long, from now on."""
        ...

    async def append_event(self, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
        """An event that is not a change of a task (those are appended by the change itself)."""
        ...

    async def events_after(self, caller: str, number: int, limit: int | None = None) -> EventPage:
        """At most `limit` of them; without it, all that are kept."""
        ...

    async def streams_of(self, caller: str) -> tuple[str, ...]:
        """The names of all streams of a caller's conversations that are remembered."""
        ...

    async def event_number(self, caller: str, event_id: str) -> int | None:
        """The position of an event by its id, or None if it is not kept."""
        ...

    async def cursor(self, caller: str) -> int:
        """Up to which number events have been handed to this caller; 0 if none."""
        ...

    def move_cursor(self, caller: str, number: int) -> None:
        """Remember a hand-over. Never moves back; reaches the disk with the next commit."""
        ...
