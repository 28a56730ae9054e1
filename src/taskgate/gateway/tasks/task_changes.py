"""Announce changes of tasks within the process: wake waiting requests and publish events.

The store has the state; this only saves waiting requests from polling it. A task may change while a request reads it, so the newest
revision of tasks that changed lately is kept: a request that has read an older one does not wait.
"""

from __future__ import annotations

import asyncio
from typing import Final

from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, ProgressMade, TaskChanged, TaskExpired

_MAX_NEWEST: Final = 2_000
"""More tasks than change while one of them is read."""


class TaskChanges:
    def __init__(self, events: EventHub) -> None:
        self._events = events
        self._newest: dict[str, int] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def changed(self, task: Task) -> None:
        # Inserted again, so that the first entry is the oldest one.
        newest = self._newest
        newest[task.id] = max(task.revision, newest.pop(task.id, 0))
        if len(newest) > _MAX_NEWEST:
            del newest[next(iter(newest))]
        self._wake(task.id)
        if task.parent and task.state is TaskState.INPUT_REQUIRED:
            # A question of a call is answered by the caller of the script, which knows the script's task only.
            self._wake(task.parent)
        self._events.publish(TaskChanged(task))

    def _wake(self, task_id: str) -> None:
        for future in self._waiting.pop(task_id, ()):
            if not future.done():
                future.set_result(None)

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
            self._wake(task_id)

    async def next_change(self, seen: Task, timeout_s: float | None) -> bool:
        """Wait until the task differs from what the caller has seen of it. Return False on timeout."""
        task_id = seen.id
        if self._newest.get(task_id, 0) > seen.revision:
            return True
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
