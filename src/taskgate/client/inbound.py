"""Tasks that live in this client: a stateful server may ask for an elicitation or a sampling *as a task*.

The client then answers at once with a task, works on it, and serves `tasks/get`, `tasks/result`, `tasks/list` and
`tasks/cancel` to the server. Called by the inbound dispatcher. Kept in memory, bounded, and forgotten after their ttl.

Everything a server sends on its own account: notifications to spread, requests to answer.

The transports hand each message to `deliver`, which never raises and never waits. Requests are answered by tasks
that this object owns, at most `MOST_AT_ONCE` at a time, and that are cancelled when the server says so or the
session closes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from taskgate import clock
from taskgate.client.errors import ClientError, Question, Refused, ServerError
from taskgate.client.questions import ELICITATION, ROOTS, SAMPLING, Answering
from taskgate.client.results import RELATED_TASK, Options, TaskStatus
from taskgate.client.transport import Message, encode

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
    """The tasks this client runs for the server."""

    def __init__(self, limit: int, on_change: Callable[[dict[str, Any]], None]) -> None:
        self._limit = limit
        self._on_change = on_change
        self._tasks: dict[str, _Hosted] = {}

    def create(self, wanted: Any, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Start `work` as a task; the answer is a CreateTaskResult."""
        self._sweep()
        if len(self._tasks) >= self._limit:
            work.close()
            raise ServerError(-32603, "this client already runs as many tasks as it may")
        hosted = _Hosted(_ttl(wanted))
        self._tasks[hosted.task_id] = hosted
        hosted.runner = asyncio.create_task(self._run(hosted, work), name=f"taskgate-client-hosted-{hosted.task_id}")
        return {"task": hosted.wire()}

    async def serve(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one of the four `tasks/*` requests."""
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
        raise ServerError(-32601, f"this client does not know {method}")

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
        except Exception as error:  # one task run: a broken callback must not break the session
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


def _ttl(wanted: Any) -> int:
    asked = wanted.get("ttl") if isinstance(wanted, Mapping) else None
    if isinstance(asked, bool) or not isinstance(asked, int) or asked <= 0:
        return DEFAULT_TTL_MS
    return min(asked, LONGEST_TTL_MS)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


MOST_AT_ONCE = 100
_TASK_METHODS = ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel")
_log = logging.getLogger("taskgate.client")

Listener = Callable[[Mapping[str, Any]], Any]


class Inbound:
    """Spreads notifications and answers requests."""

    def __init__(
        self, options: Options, answering: Answering, send: Callable[[bytes], Coroutine[Any, Any, None]]
    ) -> None:
        self._options, self._answering, self._send = options, answering, send
        self._listeners: dict[str, list[Listener]] = {}
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._hosted = HostedTasks(options.max_hosted_tasks, self._tell_status)

    def on(self, method: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the params of each such notification; the returned function ends that."""
        self._listeners.setdefault(method, []).append(listener)
        return lambda: self._listeners[method].remove(listener)

    def deliver(self, message: Message) -> None:
        """Take one message from the wire. Late and second responses, and rubbish, end here."""
        method = message.get("method")
        if not isinstance(method, str):
            return
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        if message.get("id") is not None:
            self._begin(message["id"], method, params)
        elif method == "notifications/cancelled":
            self._withdraw(repr(params.get("requestId")))
        else:
            self.spread(method, params)

    def spread(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell every listener of a notification."""
        for listener in (*self._listeners.get(method, ()),):
            self._tell(listener, params)
        if self._options.on_notification is not None:
            self._tell(self._options.on_notification, method, params)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` beside the session; it is awaited when the session closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._hosted.close()

    def _begin(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        key = repr(request_id)  # 1 and "1" are two requests
        if key in self._requests:
            return  # the same request twice, as a resumed stream may bring it
        if len(self._requests) >= MOST_AT_ONCE:
            if len(self._tasks) < 2 * MOST_AT_ONCE:
                self.spawn(self._reply_error(request_id, ServerError(-32603, "this client is busy"), params))
            return
        task = self.spawn(self._serve(request_id, method, params))
        self._requests[key] = task
        task.add_done_callback(lambda _: self._requests.pop(key, None))

    async def _serve(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        try:
            result = await self._answer(request_id, method, params)
        except ServerError as error:
            await self._reply_error(request_id, error, params)
        except Refused as error:
            await self._reply_error(request_id, ServerError(-1, str(error) or "the user refused"), params)
        except Exception as error:  # around one request: a broken callback must not break the session
            _log.exception("the callback for %s failed", method)
            failure = ServerError(-32603, f"the client's callback failed: {type(error).__name__}")
            await self._reply_error(request_id, failure, params)
        else:
            await self._reply({"jsonrpc": "2.0", "id": request_id, "result": _related(result, params)})

    async def _answer(self, request_id: int | str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "ping":
            return {}
        if method in _TASK_METHODS:
            return await self._hosted.serve(method, params)
        if method not in (ELICITATION, SAMPLING, ROOTS):
            raise ServerError(-32601, f"this client does not know {method}")
        question = Question(str(request_id), method, params, _related_task(params))
        if isinstance(params.get("task"), dict) and self._options.tasks and method != ROOTS:
            return self._hosted.create(params["task"], self._answering.answer(question))
        return await self._answering.answer(question)

    async def _reply_error(self, request_id: int | str, error: ServerError, params: Mapping[str, Any]) -> None:
        body: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.data is not None:
            body["data"] = error.data
        await self._reply({"jsonrpc": "2.0", "id": request_id, "error": body})

    async def _reply(self, message: Message) -> None:
        try:
            await self._send(encode(message))
        except (ClientError, UnicodeEncodeError) as error:
            _log.warning("an answer to the server could not be delivered: %s", error)

    def _withdraw(self, key: str) -> None:
        task = self._requests.get(key)
        if task is not None:
            task.cancel()

    def _tell(self, listener: Callable[..., Any], *arguments: Any) -> None:
        try:
            outcome = listener(*arguments)
        except Exception:  # around one notification: listeners are foreign code
            _log.exception("a notification callback failed")
            return
        if inspect.iscoroutine(outcome):
            self.spawn(outcome)

    def _tell_status(self, task: dict[str, Any]) -> None:
        self.spawn(self._reply({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task}))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), ClientError):
            _log.error("work beside the session failed", exc_info=task.exception())


def _related_task(params: Mapping[str, Any]) -> str | None:
    meta = params.get("_meta")
    related = meta.get(RELATED_TASK) if isinstance(meta, Mapping) else None
    task_id = related.get("taskId") if isinstance(related, Mapping) else None
    return task_id if isinstance(task_id, str) else None


def _related(result: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to a task says so: an answer carries the related-task of its question."""
    task_id = _related_task(params)
    if task_id is None:
        return result
    meta = result.get("_meta")
    return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), RELATED_TASK: {"taskId": task_id}}}
