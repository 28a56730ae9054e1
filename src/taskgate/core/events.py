"""Events: what happened to a caller's work since it last looked, and which event each change of a task is."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from itertools import islice
from typing import Any, Final

import msgspec

from taskgate.core.audit import AuditEntry, revisions
from taskgate.core.tasks import projections
from taskgate.core.tasks.endings import iso
from taskgate.core.tasks.task import Task

# Events: what happened to a caller's work since it last looked, each under its own ULID.
#
# Changes of tasks are durable and come from the store's outbox; everything else lives as long as the session. Logs are
# not events.
#
# One conversation's events, and which of them it has been handed: each exactly once while it is kept.
#
# Handing over takes three steps. `take` gives everything new to one reply; `confirm` follows when that reply has
# reached the transport; `undo` when it has not, and then the same events, under the same ids, go into the next reply.
# What has been handed over is kept a while longer for a caller that asks for everything after an id. What is forgotten
# before it was handed over is counted, so that a caller can be told.
#
# Why a wait ended, and what is pending when it did.


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
    """One event. `number` is its place in the durable `stream` that it came from, or 0 if it lives in memory only."""

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
    """Events grouped by server, each group in order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        groups.setdefault(event.server, []).append(event.shown())
    return [{"server": server, "events": shown} for server, shown in groups.items()]


KEPT: Final = 1_000
KEPT_MS: Final = 30 * 60_000
PER_REPLY: Final = 200


class _Place(Enum):
    NEW = "new"
    TAKEN = "taken"
    DONE = "done"


class _Entry:
    __slots__ = ("event", "place")

    def __init__(self, event: Event, place: _Place) -> None:
        self.event = event
        self.place = place


class EventBatch:
    """Events on their way to a caller, with how many came before them and are gone."""

    __slots__ = ("_entries", "events", "lost")

    def __init__(self, entries: list[_Entry], lost: int) -> None:
        self._entries = entries
        self.events = tuple(entry.event for entry in entries)
        self.lost = lost

    def __bool__(self) -> bool:
        return bool(self._entries) or self.lost > 0


class EventLog:
    def __init__(self, kept: int = KEPT, kept_ms: int = KEPT_MS) -> None:
        self.lost = 0
        self._kept = kept
        self._kept_ms = kept_ms
        self._entries: deque[_Entry] = deque()
        self._durable: defaultdict[str, deque[_Entry]] = defaultdict(deque)
        """By stream, durable ones that were not all handed over yet: so that the position is found without a search."""
        self._new = 0
        self._count = 0

    def missed(self, count: int) -> None:
        """Events that were gone before this log began."""
        self.lost += count

    def adopt(self, kept: int, kept_ms: int) -> None:
        """Other limits hold from now on; what is over them goes with the next event or look."""
        self._kept, self._kept_ms = kept, kept_ms

    @property
    def has_new(self) -> bool:
        return self._new > 0 or self.lost > 0

    @property
    def count(self) -> int:
        """How many were ever added: a position to look back from."""
        return self._count

    @property
    def last_id(self) -> str | None:
        return self._entries[-1].event.id if self._entries else None

    def add(self, event: Event, *, handed_over: bool = False) -> None:
        """`handed_over` is for what an earlier process delivered and the store still keeps."""
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
        """What was added after a position and is still kept."""
        wanted = min(self._count - count, len(self._entries))
        return tuple(entry.event for entry in islice(reversed(self._entries), wanted))[::-1]

    def take(self) -> EventBatch:
        """What is new, for one reply: in order, and not more than fits one."""
        if not self.has_new:
            return EventBatch([], 0)
        return self._hand(self._newest())

    def _newest(self) -> list[_Entry]:
        """The new ones in order. They stand at the end, so this looks at little else."""
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
        """Everything kept after an event, whether or not it was handed over before. Unknown ids are placed by their time,
        which a ULID begins with.
        """
        return self._hand(self._after(event_id))

    def _after(self, event_id: str) -> list[_Entry]:
        entries = list(self._entries)
        known = next((at for at, entry in enumerate(entries) if entry.event.id == event_id), None)
        if known is not None:
            return entries[known + 1 :]
        return [entry for entry in entries if entry.event.id > event_id]

    def _hand(self, entries: Iterable[_Entry]) -> EventBatch:
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
        """It arrived. Returns for each stream the number up to which every event has now been handed over, if that moved."""
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
        """It did not arrive: the same events go into the next reply. One that is forgotten by now counts as lost."""
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


TIMEOUT: Final[dict[str, Any]] = {"type": "timeout"}
IMMEDIATE: Final[dict[str, Any]] = {"type": "immediate"}


def triggers(events: Iterable[Event]) -> list[dict[str, Any]]:
    """What woke a waiter: each kind of event from each server once, in the order in which they came."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        if event.kind == EventKind.SERVER_DISCONNECTED:
            trigger = {"type": "server_disconnected", "server": event.server}
        else:
            trigger = {"type": "event", "server": event.server, "eventType": event.kind}
        found.setdefault((event.server, event.kind), trigger)
    return list(found.values())


def pending_on_servers(tasks: Iterable[Task], now_ms: int) -> list[dict[str, Any]]:
    """The tasks that servers still work on, by server."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        row = {"taskId": task.id, "toolName": task.tool, "status": projections.shown_status(task, now_ms)}
        groups.setdefault(task.server, []).append(row)
    return [{"server": server, "working_tasks": rows} for server, rows in groups.items()]


# Which event a change of a task is. The store appends one with every change of state, in the same transaction.
#
# The kinds shown to callers of the tools are created, completed, failed, cancelled and expired; every other change of
# state is `task_status`, which live views and streams use and the tool face leaves out.
#
# What the audit trail says about a change of a task, when nobody says it better.
#
# The store appends one entry with every change of state and with every attempt, in the same transaction. A use case
# that knows more (which rule spoke, who approved) hands its own entry to the store instead. Arguments appear only as
# their digest.


class TaskEvent(StrEnum):
    CREATED = "task_created"
    STATUS = "task_status"
    COMPLETED = "task_completed"
    FAILED = "task_failed"
    CANCELLED = "task_cancelled"
    EXPIRED = "task_expired"


def event_of(before: Task | None, after: Task) -> TaskEvent | None:
    """The event of one change, or None if the state stayed the same."""
    if before is None:
        return TaskEvent.CREATED
    if before.state is after.state:
        return None
    if not after.state.is_terminal:
        return TaskEvent.STATUS
    return TaskEvent("task_" + projections.shown_status(after, after.updated_ms))


def event_data(after: Task) -> dict[str, Any]:
    """What an event tells: names and state, never arguments or results."""
    data: dict[str, Any] = {"task_id": after.id, "tool": after.tool, "state": after.state.value}
    if after.status_message is not None:
        data["message"] = after.status_message
    return data


def entry_of(before: Task | None, after: Task, at_ms: int) -> AuditEntry | None:
    """The entry for one change, or None where nothing happened that is worth proving."""
    event = _event(before, after)
    if event is None:
        return None
    return AuditEntry(
        at_ms=at_ms,
        event=event,
        principal=after.principal,
        scope=after.scope,
        server=after.server,
        name=after.tool,
        arguments_digest=after.digest,
        policy_revision=revisions(after.policy_revision, after.scope_revision),
        approval_id=after.approval_id or "",
        reason=after.status_message or "" if after.state.is_terminal else "",
        task_id=after.id,
        outcome=_outcome(after),
        executed=_executed(after),
        correlation_id=after.correlation_id,
    )


def _event(before: Task | None, after: Task) -> str | None:
    if before is None:
        return "task_created"
    if after.attempts > before.attempts:
        return "task_dispatched"
    if after.state is not before.state:
        return f"task_{after.state.value}"
    return None


def _outcome(task: Task) -> str:
    if task.outcome is None:
        return ""
    return "error" if task.outcome.is_error else "ok"


def _executed(task: Task) -> str:
    if task.executed is not None:
        return task.executed.value
    return "maybe" if task.may_have_been_sent else "no"
