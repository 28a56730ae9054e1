"""Durable events by caller, in order, each with its own id.

A caller with an identity has one stream of events per conversation (`core.identity.conversation`); here `caller` is the name of
such a stream. Events of a stream are numbered without gaps, in the order of the commits. A reader that remembers one number
therefore misses no event, sees none twice, and can compute how many were deleted before it read them. `StoreState.keep_events` sets
how many are retained per caller and for how long. Events of sessions that need not survive the process are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from taskgate.core.identity.conversation import streams_between
from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.ports.store_answers import StoredEvent
from taskgate.store.locks import Locks
from taskgate.store.operation import Latest, Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

_encode: Final = msgspec.json.Encoder().encode
_TRIM_EVERY: Final = 64


class EventPage(msgspec.Struct, frozen=True):
    """Events after a position. `lost` is the number of events that were deleted before they were read."""

    events: tuple[StoredEvent, ...]
    lost: int
    last: int


class AppendEvent(Operation[StoredEvent], frozen=True):
    """Append an event to a caller's stream. A change of a task appends its own."""

    caller: str
    kind: str
    server: str
    data: Mapping[str, Any]

    @property
    def locks(self) -> Locks:
        return Locks(callers=(self.caller,))

    def run(self, tx: Transaction) -> StoredEvent:
        number = tx.next_event_number(self.caller)
        event_id = ulid(tx.now_ms, tx.random_bytes(RANDOM_BYTES))
        event = StoredEvent(
            number, event_id, self.caller, self.kind, server=self.server, at_ms=tx.now_ms, data=self.data
        )
        tx.put("insert_event", **event_columns(tx.sealing, event))
        if number % _TRIM_EVERY == 0:
            tx.queue("drop_old_events_of_caller", caller=self.caller, number=number - tx.state.max_events)
        return event


class MoveCursor(Latest, frozen=True):
    """Store up to which event a caller has received its stream. The cursor never moves back."""

    caller: str
    number: int

    @property
    def key(self) -> str:
        return self.caller

    @property
    def locks(self) -> Locks:
        return Locks(callers=(self.caller,))

    def merged(self, earlier: MoveCursor) -> MoveCursor:
        return self if self.number > earlier.number else earlier

    def run(self, tx: Transaction) -> None:
        tx.run("move_cursor", caller=self.caller, number=self.number, now_ms=tx.now_ms)


class FindCursor(Query[int], frozen=True):
    """The number of the last event that was delivered to this caller; 0 if there is none."""

    caller: str

    def run(self, reader: Reader) -> int:
        waiting = reader.state.waiting_for(MoveCursor, self.caller)
        _, delivered = _stream(reader, self.caller)
        return max(0 if waiting is None else waiting.number, delivered)


class EventsAfter(Query[EventPage], frozen=True):
    """At most `limit` events; by default all that are retained."""

    caller: str
    number: int
    limit: int | None = None

    def run(self, reader: Reader) -> EventPage:
        state = reader.state
        last, _ = _stream(reader, self.caller)
        values = {
            "caller": self.caller,
            "number": max(self.number, last - state.max_events),
            "limit": state.max_events if self.limit is None else self.limit,
            "since_ms": reader.now_ms - state.events_for_ms,
        }
        found = reader.run("events_after", **values)
        events = tuple(readable("events", found, partial(event_from, reader.sealing), lambda row: str(row[1])))
        first_kept = events[0].number if events else last + 1
        return EventPage(events, lost=max(0, first_kept - self.number - 1), last=last)


class StreamsOf(Query[tuple[str, ...]], frozen=True):
    """The names of all stored streams of a caller's conversations."""

    caller: str

    def run(self, reader: Reader) -> tuple[str, ...]:
        first, beyond = streams_between(self.caller)
        found = reader.run("streams_of_caller", caller=self.caller, first=first, beyond=beyond)
        return tuple(row[0] for row in found)


def _stream(reader: Reader, caller: str) -> tuple[int, int]:
    """Return the last number assigned, and the last one delivered."""
    row = reader.run("find_stream", caller=caller).fetchone()
    return (0, 0) if row is None else (row[0], row[1])


def event_columns(sealing: Sealing, event: StoredEvent) -> dict[str, Any]:
    return {
        "caller": event.caller,
        "number": event.number,
        "id": event.id,
        "kind": event.kind,
        "server": event.server,
        "at_ms": event.at_ms,
        "data": sealing.seal(_encode(event.data), event.id),
    }


def event_from(sealing: Sealing, row: Sequence[Any]) -> StoredEvent:
    number, event_id, caller, kind, server, at_ms, data = row
    decoded = msgspec.json.decode(sealing.open(data, event_id))
    return StoredEvent(number, event_id, caller, kind, server=server, at_ms=at_ms, data=decoded)
