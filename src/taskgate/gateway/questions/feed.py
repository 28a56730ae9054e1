"""The event feed of one conversation: its events in one order, its open tasks, waiting requests, timers and subscriptions.

Events of tasks come from the store and survive a restart; all others are added here and do not. A feed is created when its client
first uses a tool that returns events, and costs nothing before. It reads the stored stream of its own conversation,
and follows those of the same caller's conversations that have ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from taskgate import clock
from taskgate.core.event_log import EventBatch, EventLog
from taskgate.core.events import ENDED, SHOWN, Event, EventKind
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.core.tasks.state import OPEN
from taskgate.core.tasks.task import Task
from taskgate.ports.link import LinkKey
from taskgate.ports.store import Store
from taskgate.ports.store_answers import StoredEvent
from taskgate.store.operations.events import EventsAfter, FindCursor, MoveCursor
from taskgate.store.operations.task_queries import TasksPage

MAX_NOTIFICATIONS: Final = 1_000
MAX_LOGS: Final = 1_000
MAX_OPEN_SHOWN: Final = 1_000


class Feed:
    __slots__ = (
        "_dirty",
        "_ended",
        "_positions",
        "_store",
        "_syncing",
        "_waiting",
        "key",
        "last_used",
        "log",
        "logs",
        "notifications",
        "open_tasks",
        "scope",
        "timers",
        "watched",
        "watched_over",
    )

    def __init__(self, key: ConversationKey, scope: str, store: Store, log: EventLog | None = None) -> None:
        self.key = key
        self.scope = scope
        self.log = log or EventLog()
        self.last_used = 0.0
        self.open_tasks: dict[str, Task] = {}
        self.notifications: deque[dict[str, Any]] = deque(maxlen=MAX_NOTIFICATIONS)
        self.logs: deque[dict[str, Any]] = deque(maxlen=MAX_LOGS)
        self.timers: dict[str, Any] = {}
        self.watched: dict[str, str] = {}
        self.watched_over: dict[str, LinkKey] = {}
        """The link over which each resource is followed."""
        self._store = store
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None
        self._positions: dict[str, int | None] = {key.stream: None}
        """Last event number read of each followed stream; None before the first read."""
        self._dirty: set[str] = set()
        # Events of one task may arrive out of order: an ended task does not start again.
        self._ended: deque[str] = deque(maxlen=100)

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiting)

    def touch(self, now: float) -> None:
        self.last_used = now

    async def load(self, ended: Iterable[str]) -> None:
        """Load from the store: undelivered events, delivered events that may be requested again, and open tasks."""
        self._positions.update(dict.fromkeys(ended))
        self._dirty.update(self._positions)
        self._sync_soon()
        await self.settled()

    async def _begin(self, streams: list[str]) -> None:
        """Read streams for the first time. Events of another conversation that were delivered before are skipped."""
        found: list[tuple[StoredEvent, bool]] = []
        for stream in streams:
            cursor = await self._store.ask(FindCursor(stream))
            if stream == self.key.stream:
                self.log.missed((await self._store.ask(EventsAfter(stream, cursor))).lost)
            page = await self._store.ask(EventsAfter(stream, 0))
            self._positions[stream] = max(page.last, cursor)
            found += [(event, event.number <= cursor) for event in page.events]
        found.sort(key=lambda one: (one[0].at_ms, one[0].number))
        for event, handed_over in found:
            self._take_in(event, handed_over)
        for task in (await self._store.ask(TasksPage(self.key.caller, limit=MAX_OPEN_SHOWN, states=OPEN))).tasks:
            if task.conversation_key.stream in streams and task.id not in self._ended:
                self.open_tasks.setdefault(task.id, task)

    def _take_in(self, stored: StoredEvent, handed_over: bool) -> None:
        if stored.kind in ENDED:
            self._forget_task(str(stored.data.get("task_id")))
        if stored.kind in SHOWN:
            event = Event(
                id=stored.id,
                kind=stored.kind,
                server=stored.server,
                at_ms=stored.at_ms,
                data=stored.data,
                number=stored.number,
                stream=stored.caller,
            )
            self.log.add(event, handed_over=handed_over)

    def follow(self, stream: str) -> None:
        """Also follow an ended conversation of the same caller: its remaining events, and those of its tasks."""
        if stream not in self._positions:
            self._positions[stream] = None
            self.sync_soon(stream)

    def unfollow(self, stream: str) -> None:
        """Stop following a conversation that has resumed."""
        if stream != self.key.stream:
            self._positions.pop(stream, None)
            gone = [task.id for task in self.open_tasks.values() if task.conversation_key.stream == stream]
            for task_id in gone:
                del self.open_tasks[task_id]

    def add_event(self, kind: EventKind, server: str, data: dict[str, Any]) -> None:
        """Add an event that need not survive a restart."""
        now = clock.wall_ms()
        self.log.add(Event(id=new_ulid(now), kind=kind.value, server=server, at_ms=now, data=data))
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def task_changed(self, task: Task) -> None:
        known = self.open_tasks.get(task.id)
        if task.state.is_terminal:
            self._forget_task(task.id)
        elif known is not None:
            self.open_tasks[task.id] = task if task.revision > known.revision else known
        elif task.id not in self._ended and len(self.open_tasks) < MAX_OPEN_SHOWN:
            self.open_tasks[task.id] = task
        self.sync_soon(task.conversation_key.stream)

    def _forget_task(self, task_id: str) -> None:
        """Note that a task has ended. The store's event may arrive before the direct notification."""
        self.open_tasks.pop(task_id, None)
        self._ended.append(task_id)

    def sync_soon(self, stream: str) -> None:
        """Fetch stored events. Changes that arrive during the fetch cause one more round."""
        self._dirty.add(stream)
        self._sync_soon()

    def _sync_soon(self) -> None:
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty & self._positions.keys(), set()
            before = self.log.count
            fresh = [stream for stream in dirty if self._positions[stream] is None]
            if fresh:
                await self._begin(fresh)
            for stream in dirty.difference(fresh):
                await self._read_stream(stream)
            if self.log.count > before:
                self._wake()

    async def _read_stream(self, stream: str) -> None:
        position = self._positions.get(stream)
        page = await self._store.ask(EventsAfter(stream, position)) if position is not None else None
        for event in page.events if page is not None else ():
            self._positions[stream] = event.number
            self._take_in(event, handed_over=False)

    async def settled(self) -> None:
        """Wait for a fetch in progress, so that a reply contains the events of its own call."""
        if self._syncing is not None and not self._syncing.done():
            await asyncio.shield(self._syncing)

    async def wait_for_event(self, seen: int, timeout_s: float) -> bool:
        """Wait until the log has more events than the caller has seen. Return False on timeout. Adding an event wakes the waiter;
        there is no polling."""
        if self.log.count > seen:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            if future in self._waiting:
                self._waiting.remove(future)
        return True

    def take(self, after: str | None = None) -> tuple[EventBatch, list[Event]]:
        """Return the batch for one reply, and its events in wire form, preceded by a marker if events were lost."""
        self.log.trim(clock.wall_ms())
        batch = self.log.take_after(after) if after is not None else self.log.take()
        events = list(batch.events)
        if batch.lost:
            now = clock.wall_ms()
            events.insert(
                0,
                Event(
                    id=new_ulid(now), kind=EventKind.EVENTS_LOST.value, server="", at_ms=now, data={"count": batch.lost}
                ),
            )
        return batch, events

    def handed_over(self, batch: EventBatch, arrived: bool) -> None:
        if not arrived:
            self.log.undo(batch)
            self._wake()
            return
        for stream, number in self.log.confirm(batch).items():
            self._store.defer(MoveCursor(stream, number))

    def close(self) -> None:
        for timer in self.timers.values():
            timer.handle.cancel()
        self.timers.clear()
        self._wake()


def new_ulid(now_ms: int) -> str:
    return ulid(now_ms, secrets.token_bytes(RANDOM_BYTES))
