"""Protocols between a task handle and the object that follows tasks, so that neither imports the other.

`Following` implements `Follower`, `TaskHandle` implements `Followed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from taskgate.client.options import Generation, Options
from taskgate.client.poller import Watched
from taskgate.client.questions import Answering
from taskgate.client.results import Task, TaskUpdate


class Followed(Watched, Protocol):
    """A followed task."""

    @property
    def task_id(self) -> str | None: ...

    @property
    def has_outcome(self) -> bool: ...


class Follower(Protocol):
    """Polls followed tasks and sends `tasks/*` requests for them."""

    @property
    def options(self) -> Options: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def answering(self) -> Answering: ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...

    def poll_now(self, handle: Followed) -> None: ...

    def poll_now_by_id(self, task_id: str) -> None: ...

    def forget(self, handle: Followed) -> None: ...

    def ended(self, handle: Followed, token: str | None) -> None: ...

    def long_lived(self, handle: Followed) -> None: ...

    def warn(self, update: TaskUpdate) -> None: ...

    async def read_task(self, task_id: str, timeout: float | None = None) -> Task: ...

    async def fetch_result(self, task_id: str, timeout: float, *, long: bool = False) -> dict[str, Any]: ...

    async def update_task(self, task_id: str, answers: Mapping[str, Any]) -> None: ...

    async def cancel_task(self, task_id: str, timeout: float | None = None) -> Task: ...
