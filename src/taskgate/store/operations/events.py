"""Events: numbered without gaps within one caller, in the order of the commits."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from taskgate.core.tasks.task import RANDOM_BYTES, ulid
from taskgate.ports.store_answers import StoredEvent
from taskgate.store.operations import rows
from taskgate.store.operations.transaction import Transaction

_TRIM_EVERY: Final = 64


def tell(tx: Transaction, caller: str, kind: str, server: str, data: Mapping[str, Any]) -> StoredEvent:
    """Append an event to a caller's stream."""
    number = tx.next_event_number(caller)
    event_id = ulid(tx.now_ms, secrets.token_bytes(RANDOM_BYTES))
    event = StoredEvent(number, event_id, caller, kind, server, tx.now_ms, data)
    tx.put("insert_event", **rows.event_columns(tx.sealing, event))
    if number % _TRIM_EVERY == 0:
        tx.run("drop_old_events_of_caller", caller=caller, number=number - tx.kept_events.most)
    return event


def move_cursor(tx: Transaction, caller: str, number: int) -> None:
    """Remember up to where a caller was handed its events. Never moves back."""
    tx.run("move_cursor", caller=caller, number=number, now_ms=tx.now_ms)
