"""Event streams: events of one caller are numbered without gaps, in the order of the commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.ports.event_outbox import StoredEvent
from taskgate.store.sealing import Sealing
from taskgate.store.transaction import Transaction

_encode: Final = msgspec.json.Encoder().encode
_TRIM_EVERY: Final = 64


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
    return StoredEvent(number, event_id, caller, kind, server, at_ms, decoded)


def append_event(tx: Transaction, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
    """Append an event to a caller's stream."""
    number = tx.next_event_number(caller)
    event_id = ulid(tx.now_ms, tx.random_bytes(RANDOM_BYTES))
    event = StoredEvent(number, event_id, caller, kind, server, tx.now_ms, data)
    tx.put("insert_event", **event_columns(tx.sealing, event))
    if number % _TRIM_EVERY == 0:
        tx.queue("drop_old_events_of_caller", caller=caller, number=number - tx.settings.max_events)
    return event


def move_cursor(tx: Transaction, caller: str, number: int) -> None:
    """Store up to which event a caller has received its stream. The cursor never moves back."""
    tx.run("move_cursor", caller=caller, number=number, now_ms=tx.now_ms)
