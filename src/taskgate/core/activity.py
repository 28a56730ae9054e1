"""Why a wait for activity ended, and what is still pending."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from taskgate.core.events import Event, EventKind
from taskgate.core.tasks.projections_tools import shown_status
from taskgate.core.tasks.task import Task

TIMEOUT: Final[dict[str, Any]] = {"type": "timeout"}
IMMEDIATE: Final[dict[str, Any]] = {"type": "immediate"}


def triggers(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the events that ended a wait: each kind of event of each server once, in order."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        if event.kind == EventKind.SERVER_DISCONNECTED:
            trigger = {"type": "server_disconnected", "server": event.server}
        else:
            trigger = {"type": "event", "server": event.server, "eventType": event.kind}
        found.setdefault((event.server, event.kind), trigger)
    return list(found.values())


def pending_on_servers(tasks: Iterable[Task], now_ms: int) -> list[dict[str, Any]]:
    """Tasks that servers are still working on, by server."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        row = {"taskId": task.id, "toolName": task.tool, "status": shown_status(task, now_ms)}
        groups.setdefault(task.server, []).append(row)
    return [{"server": server, "working_tasks": rows} for server, rows in groups.items()]
