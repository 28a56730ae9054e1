"""Announce changes of tasks within the process: wake waiting requests and publish events.

Nothing is kept here. The store has the state; this only saves waiting requests from polling it.
"""

from __future__ import annotations

import asyncio

from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, ProgressMade, TaskChanged, TaskExpired


class TaskChanges:
    def __init__(self, events: EventHub) -> None:
        self._events = events
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def changed(self, task: Task) -> None:
        for future in self._waiting.pop(task.id, ()):
            if not future.done():
                future.set_result(None)
        self._events.publish(TaskChanged(task))

    def noted(self, event: ProgressMade) -> None:
        self._events.publish(event)

    def expired(self, task: Task) -> None:
        self._events.publish(TaskExpired(task))

    @property
    def awaited(self) -> frozenset[str]:
        """The tasks that a request waits for."""
        return frozenset(self._waiting)

    def wake_all(self) -> None:
        """Wake all waiting requests although nothing changed."""
        for task_id in list(self._waiting):
            for future in self._waiting.pop(task_id, ()):
                if not future.done():
                    future.set_result(None)

    async def next_change(self, task_id: str, timeout_s: float | None) -> bool:
        """Wait for the next change of this task. Return False on timeout."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(task_id, [])
        waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            if future in waiting:
                waiting.remove(future)
            if not waiting and self._waiting.get(task_id) is waiting:
                del self._waiting[task_id]
        return True
