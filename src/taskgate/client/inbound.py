"""Dispatch what a server sends on its own account: notifications to listeners, requests to callbacks.

Transports pass each message to `deliver`, which never raises and never blocks. Requests are answered by asyncio tasks that
this object owns, at most `MAX_CONCURRENT` at a time; they are cancelled on `notifications/cancelled` and when the session
closes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from taskgate.client.errors import ClientError, Question, Refused, ServerError
from taskgate.client.hosted_tasks import HostedTasks
from taskgate.client.messages import Message, encode
from taskgate.client.options import Options
from taskgate.client.questions import ELICITATION, ROOTS, SAMPLING, Answering
from taskgate.client.results import RELATED_TASK

MAX_CONCURRENT = 100
_TASK_METHODS = ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel")
_log = logging.getLogger("taskgate.client")
Listener = Callable[[Mapping[str, Any]], Any]


class Inbound:
    """Dispatches notifications and answers requests."""

    def __init__(
        self, options: Options, answering: Answering, send: Callable[[bytes], Coroutine[Any, Any, None]]
    ) -> None:
        self._options, self._answering, self._send = options, answering, send
        self._listeners: dict[str, list[Listener]] = {}
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._hosted = HostedTasks(options.max_hosted_tasks, self._notify_status)

    def on(self, method: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the params of each notification. Returns a function that removes it."""
        self._listeners.setdefault(method, []).append(listener)
        return lambda: self._listeners[method].remove(listener)

    def deliver(self, message: Message) -> None:
        """Take one message. Late and duplicate responses and invalid messages are ignored."""
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
            self.dispatch(method, params)

    def dispatch(self, method: str, params: Mapping[str, Any]) -> None:
        """Call all listeners of a notification."""
        for listener in (*self._listeners.get(method, ()),):
            self._call_listener(listener, params)
        if self._options.on_notification is not None:
            self._call_listener(self._options.on_notification, method, params)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` in the background; it is cancelled when the session closes."""
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
        key = repr(request_id)  # 1 and "1" are different ids
        if key in self._requests:
            return  # a resumed stream may repeat a request
        if len(self._requests) >= MAX_CONCURRENT:
            if len(self._tasks) < 2 * MAX_CONCURRENT:
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
        except Exception as error:  # around one request: an error in a callback must not end the session
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
            raise ServerError(-32601, f"this client does not support {method}")
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

    def _call_listener(self, listener: Callable[..., Any], *arguments: Any) -> None:
        try:
            outcome = listener(*arguments)
        except Exception:  # around one notification: listeners are user code
            _log.exception("a notification callback failed")
            return
        if inspect.iscoroutine(outcome):
            self.spawn(outcome)

    def _notify_status(self, task: dict[str, Any]) -> None:
        self.spawn(self._reply({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task}))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), ClientError):
            _log.error("a background task of the session failed", exc_info=task.exception())


def _related_task(params: Mapping[str, Any]) -> str | None:
    meta = params.get("_meta")
    related = meta.get(RELATED_TASK) if isinstance(meta, Mapping) else None
    task_id = related.get("taskId") if isinstance(related, Mapping) else None
    return task_id if isinstance(task_id, str) else None


def _related(result: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Add the related-task metadata of the request to its result."""
    task_id = _related_task(params)
    if task_id is None:
        return result
    meta = result.get("_meta")
    return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), RELATED_TASK: {"taskId": task_id}}}
