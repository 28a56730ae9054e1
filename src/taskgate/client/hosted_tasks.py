"""Tasks that run in this client: a stateful server may request an elicitation or a sampling *as a task*.

The client answers at once with a task, runs it, and serves `tasks/get`, `tasks/result`, `tasks/list` and `tasks/cancel` to
the server. Tasks are kept in memory, limited in number, and deleted after their ttl.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from taskgate import clock
from taskgate.client.errors import Refused, ServerError
from taskgate.client.results import RELATED_TASK, TaskStatus

DEFAULT_TTL_MS, LONGEST_TTL_MS = 600_000, 3_600_000
POLL_INTERVAL_MS = 1000


class _Hosted:
    __slots__ = (
        "created",
        "ended",
        "error",
        "expires",
        "message",
        "result",
        "runner",
        "status",
        "task_id",
        "ttl",
        "updated",
    )

    def __init__(self, ttl: int) -> None:
        self.task_id = secrets.token_urlsafe(18)
        self.status = TaskStatus.WORKING
        self.message: str | None = None
        self.created = self.updated = _now()
        self.ttl = ttl
        self.expires = clock.monotonic() + ttl / 1000
        self.result: dict[str, Any] | None = None
        self.error: ServerError | None = None
        self.runner: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()

    def end(self, status: TaskStatus, message: str | None = None) -> None:
        self.status, self.message, self.updated = status, message, _now()
        self.ended.set()

    def wire(self) -> dict[str, Any]:
        task: dict[str, Any] = {
            "taskId": self.task_id,
            "status": self.status.value,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttl": self.ttl,
            "pollInterval": POLL_INTERVAL_MS,
        }
        if self.message:
            task["statusMessage"] = self.message
        return task


class HostedTasks:
    """The tasks that this client runs for the server."""

    def __init__(self, limit: int, on_change: Callable[[dict[str, Any]], None]) -> None:
        self._limit = limit
        self._on_change = on_change
        self._tasks: dict[str, _Hosted] = {}

    def create(self, requested: Any, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Start `work` as a task and return a CreateTaskResult. Raises ServerError at the limit."""
        self._sweep()
        if len(self._tasks) >= self._limit:
            work.close()
            raise ServerError(-32603, "the client has reached its limit of tasks")
        hosted = _Hosted(_ttl(requested))
        self._tasks[hosted.task_id] = hosted
        hosted.runner = asyncio.create_task(self._run(hosted, work), name=f"taskgate-client-hosted-{hosted.task_id}")
        return {"task": hosted.wire()}

    async def serve(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a `tasks/*` request. Raises ServerError."""
        self._sweep()
        match method:
            case "tasks/list":
                return {"tasks": [hosted.wire() for hosted in self._tasks.values()]}
            case "tasks/get":
                return self._find(params).wire()
            case "tasks/cancel":
                return await self._cancel(self._find(params))
            case "tasks/result":
                return await self._result(self._find(params))
        raise ServerError(-32601, f"this client does not support {method}")

    async def close(self) -> None:
        runners = [hosted.runner for hosted in self._tasks.values() if hosted.runner is not None]
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def _run(self, hosted: _Hosted, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            hosted.result = await work
            hosted.end(TaskStatus.COMPLETED)
        except asyncio.CancelledError:
            if not hosted.status.is_terminal:
                hosted.end(TaskStatus.CANCELLED)
            raise
        except ServerError as error:
            hosted.error = error
            hosted.end(TaskStatus.FAILED, error.message)
        except Refused as error:
            hosted.error = ServerError(-1, str(error) or "the user refused")
            hosted.end(TaskStatus.FAILED, str(error))
        except Exception as error:  # around one task: an error in a callback must not end the session
            hosted.error = ServerError(-32603, f"the client's callback failed: {type(error).__name__}")
            hosted.end(TaskStatus.FAILED, hosted.error.message)
        self._on_change(hosted.wire())

    async def _cancel(self, hosted: _Hosted) -> dict[str, Any]:
        if hosted.status.is_terminal:
            raise ServerError(-32602, f"task {hosted.task_id} is already {hosted.status}")
        hosted.end(TaskStatus.CANCELLED)
        if hosted.runner is not None:
            hosted.runner.cancel()
        return hosted.wire()

    async def _result(self, hosted: _Hosted) -> dict[str, Any]:
        await asyncio.wait_for(hosted.ended.wait(), max(0.0, hosted.expires - clock.monotonic()) + 1)
        if hosted.error is not None:
            raise hosted.error
        result = dict(hosted.result or {})
        meta = result.get("_meta")
        result["_meta"] = {**(meta if isinstance(meta, dict) else {}), RELATED_TASK: {"taskId": hosted.task_id}}
        return result

    def _find(self, params: Mapping[str, Any]) -> _Hosted:
        hosted = self._tasks.get(str(params.get("taskId")))
        if hosted is None:
            raise ServerError(-32602, "this client has no such task")
        return hosted

    def _sweep(self) -> None:
        now = clock.monotonic()
        for task_id in [
            task_id for task_id, hosted in self._tasks.items() if hosted.expires < now and hosted.status.is_terminal
        ]:
            del self._tasks[task_id]


def _ttl(requested: Any) -> int:
    ttl = requested.get("ttl") if isinstance(requested, Mapping) else None
    if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl <= 0:
        return DEFAULT_TTL_MS
    return min(ttl, LONGEST_TTL_MS)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
