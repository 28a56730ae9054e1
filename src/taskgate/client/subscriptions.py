"""The `subscriptions/listen` stream of a stateless server, which carries all notifications that a session subscribed to.

An open stream cannot be extended, so a change opens a new one. The inbound dispatcher distributes what arrives. If the
server does not support it, polling continues without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

from taskgate import clock
from taskgate.client.errors import ClientError, HttpRefusal, ServerError

# Further tasks are polled.
MAX_TASKS = 100
GATHER_SECONDS = 0.05
STREAM_SECONDS = 3600.0
LONGEST_PAUSE = 30.0
Listen = Callable[[dict[str, Any], float], Awaitable[Any]]


class Subscriptions:
    """The subscriptions of one session, and their stream."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._kinds: set[str] = set()
        self._uris: set[str] = set()
        self._tasks: set[str] = set()
        self._stream: asyncio.Task[None] | None = None
        self._refused = False

    def add_lists(self) -> None:
        self._change(self._kinds, {"toolsListChanged", "promptsListChanged", "resourcesListChanged"})

    def add_resource(self, uri: str) -> None:
        self._change(self._uris, {uri})

    def drop_resource(self, uri: str) -> None:
        if uri in self._uris:
            self._uris.discard(uri)
            self._reopen()

    def add_task(self, task_id: str) -> None:
        if len(self._tasks) < MAX_TASKS:
            self._change(self._tasks, {task_id})

    def drop_task(self, task_id: str) -> None:
        """Drop a task. The stream is not reopened for that."""
        self._tasks.discard(task_id)

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stream

    def _change(self, current: set[str], added: set[str]) -> None:
        if not added <= current:
            current |= added
            self._reopen()

    def _reopen(self) -> None:
        if self._refused:
            return
        if self._stream is not None:
            self._stream.cancel()
        self._stream = asyncio.create_task(self._run(), name="taskgate-client-subscriptions")

    def _filter(self) -> dict[str, Any]:
        filters: dict[str, Any] = dict.fromkeys(sorted(self._kinds), True)
        if self._uris:
            filters["resourceSubscriptions"] = sorted(self._uris)
        if self._tasks:
            filters["taskIds"] = sorted(self._tasks)
        return filters

    async def _run(self) -> None:
        await clock.sleep(GATHER_SECONDS)  # combine changes that follow each other
        pause = 0.5
        while filters := self._filter():
            try:
                await self._listen({"notifications": filters}, STREAM_SECONDS)
            except (ServerError, HttpRefusal) as error:
                if isinstance(error, ServerError) or error.status < 500:
                    self._refused = isinstance(error, ServerError) and error.code == -32601
                    return
            except ClientError:
                pass
            await clock.sleep(pause * random.uniform(1.0, 1.3))
            pause = min(pause * 2, LONGEST_PAUSE)
