"""The events of one conversation, and which of them have been delivered: each exactly once while it is kept.

Delivery takes three steps. `take` assigns all new events to one reply. `confirm` follows when that reply has been written to the
transport. `undo` follows when it could not be written; the next reply then carries the same events under the same ids. Delivered
events are kept for a while, for callers that request everything after an id. Events that are dropped before delivery are counted,
and the count is reported to the caller.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from enum import Enum
from itertools import islice
from typing import Final

import msgspec

from taskgate.core.events import Event

KEPT: Final = 1_000
KEPT_MS: Final = 30 * 60_000
PER_REPLY: Final = 200


class _Place(Enum):
    NEW = "new"
    TAKEN = "taken"
    DONE = "done"


class _Entry(msgspec.Struct, eq=False):
    event: Event
    place: _Place


class EventBatch:
    """Events of one reply, with the number of earlier events that were dropped."""

    __slots__ = ("_entries", "events", "lost")

    def __init__(self, entries: list[_Entry], lost: int) -> None:
        self._entries = entries
        self.events = tuple(entry.event for entry in entries)
        self.lost = lost

    def __bool__(self) -> bool:
        return bool(self._entries) or self.lost > 0


class EventLog:
    """The events of one conversation."""

    def __init__(self, kept: int = KEPT, kept_ms: int = KEPT_MS) -> None:
        self.lost = 0
        self._kept = kept
        self._kept_ms = kept_ms
        self._entries: deque[_Entry] = deque()
        self._durable: defaultdict[str, deque[_Entry]] = defaultdict(deque)
        """By stream: durable events of which not all are delivered, so that the position is found without a search."""
        self._new = 0
        self._count = 0

    def missed(self, count: int) -> None:
        """Count events that were dropped before this log was created."""
        self.lost += count

    def adopt(self, kept: int, kept_ms: int) -> None:
        """Apply other limits from now on; what exceeds them is dropped with the next event or `trim`."""
        self._kept, self._kept_ms = kept, kept_ms

    @property
    def has_new(self) -> bool:
        return self._new > 0 or self.lost > 0

    @property
    def count(self) -> int:
        """Number of events added in total: a position for `since`."""
        return self._count

    @property
    def last_id(self) -> str | None:
        return self._entries[-1].event.id if self._entries else None

    def add(self, event: Event, *, handed_over: bool = False) -> None:
        """Append an event. `handed_over`: an earlier process delivered it, and the store still has it."""
        entry = _Entry(event, _Place.DONE if handed_over else _Place.NEW)
        self._entries.append(entry)
        if event.number:
            self._durable[event.stream].append(entry)
        self._new += not handed_over
        self._count += 1
        while len(self._entries) > self._kept:
            self._forget_oldest()

    def trim(self, now_ms: int) -> None:
        while self._entries and (
            self._entries[0].event.at_ms < now_ms - self._kept_ms or len(self._entries) > self._kept
        ):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        entry = self._entries.popleft()
        durable = self._durable.get(entry.event.stream)
        if durable and durable[0] is entry:
            durable.popleft()
        if entry.place is _Place.NEW:
            self._new -= 1
            self.lost += 1

    def since(self, count: int) -> tuple[Event, ...]:
        """Events added after a position that are still kept."""
        count_missed = min(self._count - count, len(self._entries))
        return tuple(entry.event for entry in islice(reversed(self._entries), count_missed))[::-1]

    def take(self) -> EventBatch:
        """Assign new events to one reply, in order, as many as fit."""
        if not self.has_new:
            return EventBatch([], 0)
        return self._batch(self._newest())

    def _newest(self) -> list[_Entry]:
        """The new events in order. They are at the end, so few others are visited."""
        found: list[_Entry] = []
        for entry in reversed(self._entries):
            if len(found) == self._new:
                break
            if entry.place is _Place.NEW:
                found.append(entry)
        found.reverse()
        return found

    def has_after(self, event_id: str) -> bool:
        return bool(self._after(event_id))

    def take_after(self, event_id: str) -> EventBatch:
        """Assign every event after an id, delivered or not. An unknown id is placed by its time, with which a ULID
        begins.
        """
        return self._batch(self._after(event_id))

    def _after(self, event_id: str) -> list[_Entry]:
        entries = list(self._entries)
        known = next((at for at, entry in enumerate(entries) if entry.event.id == event_id), None)
        if known is not None:
            return entries[known + 1 :]
        return [entry for entry in entries if entry.event.id > event_id]

    def _batch(self, entries: Iterable[_Entry]) -> EventBatch:
        chosen = list(islice(entries, PER_REPLY))
        entry: _Entry
        for entry in chosen:
            if entry.place is _Place.NEW:
                self._new -= 1
            entry.place = _Place.TAKEN
        batch = EventBatch(chosen, self.lost)
        self.lost = 0
        return batch

    def confirm(self, batch: EventBatch) -> dict[str, int]:
        """The reply was delivered. Return, for each stream whose position moved, the number up to which all events are
        delivered.
        """
        entry: _Entry
        for entry in batch._entries:
            entry.place = _Place.DONE
        done: dict[str, int] = {}
        for stream in {entry.event.stream for entry in batch._entries if entry.event.number}:
            durable = self._durable[stream]
            while durable and durable[0].place is _Place.DONE:
                done[stream] = durable.popleft().event.number
            if not durable:
                del self._durable[stream]
        return done

    def undo(self, batch: EventBatch) -> None:
        """The reply was not delivered: its events go into the next reply. One that was dropped meanwhile counts as lost."""
        self.lost += batch.lost
        kept = set(map(id, self._entries))
        entry: _Entry
        for entry in batch._entries:
            if entry.place is not _Place.TAKEN:
                continue
            entry.place = _Place.NEW
            if id(entry) in kept:
                self._new += 1
            else:
                self.lost += 1
