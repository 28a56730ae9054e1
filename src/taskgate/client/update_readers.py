"""Distribute the updates of one task to all its readers without blocking on a slow one.

Each reader has a bounded queue; a reader that falls behind loses its oldest updates, never the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from taskgate.client.errors import DeadlineExceeded
from taskgate.client.results import TaskUpdate

QUEUE_SIZE = 256


class UpdateReaders:
    """The readers of one task's updates."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: list[asyncio.Queue[TaskUpdate | None]] = []

    def publish(self, update: TaskUpdate | None) -> None:
        """Pass an update to all readers; None ends them."""
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(update)

    async def read(self, max_wait: float) -> AsyncIterator[TaskUpdate]:
        """Yield updates from now on until the end. Raises DeadlineExceeded after `max_wait` seconds without one."""
        queue: asyncio.Queue[TaskUpdate | None] = asyncio.Queue(QUEUE_SIZE)
        self._queues.append(queue)
        try:
            while (update := await self._next(queue, max_wait)) is not None:
                yield update
        finally:
            self._queues.remove(queue)

    async def _next(self, queue: asyncio.Queue[TaskUpdate | None], max_wait: float) -> TaskUpdate | None:
        try:
            async with asyncio.timeout(max_wait):
                return await queue.get()
        except TimeoutError as error:
            raise DeadlineExceeded(f"no update of the task for {max_wait:g} s") from error
