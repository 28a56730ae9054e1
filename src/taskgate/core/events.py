"""Events: what happened to a caller's work, each with a ULID as its id.

Events of tasks are durable and come from the store's outbox. All others are kept in memory for the duration of the
session. Log messages are not events.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from taskgate.core.timestamps import iso


class EventKind(StrEnum):
    TASK_CREATED = "task_created"
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed"
    TASK_CANCELLED = "task_cancelled"
    TASK_EXPIRED = "task_expired"
    ELICITATION_REQUEST = "elicitation_request"
    ELICITATION_EXPIRED = "elicitation_expired"
    SAMPLING_REQUEST = "sampling_request"
    SAMPLING_EXPIRED = "sampling_expired"
    NOTIFICATION = "notification"
    SERVER_CONNECTED = "server_connected"
    SERVER_DISCONNECTED = "server_disconnected"
    SERVER_RECONNECTING = "server_reconnecting"
    SERVER_RECONNECTED = "server_reconnected"
    SERVER_ADDED = "server_added"
    SERVER_REMOVED = "server_removed"
    SERVER_HEALTH_DEGRADED = "server_health_degraded"
    SERVER_HEALTH_RESTORED = "server_health_restored"
    SERVER_PROCESS_CRASHED = "server_process_crashed"
    SERVER_RESTART_FAILED = "server_restart_failed"
    TIMER_EXPIRED = "timer_expired"
    EVENTS_LOST = "events_lost"


ENDED: Final = frozenset(
    {EventKind.TASK_COMPLETED, EventKind.TASK_FAILED, EventKind.TASK_CANCELLED, EventKind.TASK_EXPIRED}
)
SHOWN: Final = frozenset(kind.value for kind in EventKind)


class Event(msgspec.Struct, frozen=True):
    """One event. `number` is its position in the durable `stream` that it belongs to, or 0 if it is in memory only."""

    id: str
    kind: str
    server: str
    at_ms: int
    data: Mapping[str, Any]
    number: int = 0
    stream: str = ""

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.kind,
            "server": self.server,
            "timestamp": iso(self.at_ms),
            "data": self.data,
        }


def by_server(events: tuple[Event, ...]) -> list[dict[str, Any]]:
    """Group events by server, each group in order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        groups.setdefault(event.server, []).append(event.shown())
    return [{"server": server, "events": shown} for server, shown in groups.items()]
