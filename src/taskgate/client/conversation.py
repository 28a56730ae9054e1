"""The stateless generation's way to be told things: one `subscriptions/listen` stream that names everything
wanted.

There is no way to add to an open stream, so a change opens a new one. What arrives is spread by the inbound
dispatcher like any notification. A server that does not offer it is left alone: polling goes on regardless. Owned
by the session.

Requests and their results, whatever they mean: the part of a session that every question to a server goes
through.

It numbers requests, has the dialect frame them and the transport take them, withdraws what was given up, begins a
forgotten session again, and repeats what is safe to repeat. It owns the receiving side. It does not know what a
tool or a task is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from taskgate import clock
from taskgate.client.dialects import Dialect, Stateful, shake_hands
from taskgate.client.errors import (
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    HttpRefusal,
    InvalidReply,
    ServerError,
    SessionExpired,
)
from taskgate.client.inbound import Inbound, Listener
from taskgate.client.questions import Answering
from taskgate.client.results import Generation, Options, Tool
from taskgate.client.streamable_http import StreamableHttp
from taskgate.client.transport import Message, Transport, encode
from taskgate.mcp.earlier_calls import ABOUT_TASKS, is_about_tasks

# More ids than this are not worth a stream: they are polled.
MOST_TASKS = 100
GATHER_SECONDS = 0.05
STREAM_SECONDS = 3600.0
LONGEST_PAUSE = 30.0

Listen = Callable[[dict[str, Any], float], Awaitable[Any]]


class Subscriptions:
    """What this session wants to hear, and the stream that brings it."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._kinds: set[str] = set()
        self._uris: set[str] = set()
        self._tasks: set[str] = set()
        self._stream: asyncio.Task[None] | None = None
        self._refused = False

    def want_lists(self) -> None:
        self._change(self._kinds, {"toolsListChanged", "promptsListChanged", "resourcesListChanged"})

    def want_resource(self, uri: str) -> None:
        self._change(self._uris, {uri})

    def drop_resource(self, uri: str) -> None:
        if uri in self._uris:
            self._uris.discard(uri)
            self._reopen()

    def want_task(self, task_id: str) -> None:
        if len(self._tasks) < MOST_TASKS:
            self._change(self._tasks, {task_id})

    def drop_task(self, task_id: str) -> None:
        """The open stream may go on naming it: a stream is not reopened to hear less."""
        self._tasks.discard(task_id)

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stream

    def _change(self, wanted: set[str], more: set[str]) -> None:
        if not more <= wanted:
            wanted |= more
            self._reopen()

    def _reopen(self) -> None:
        if self._refused:
            return
        if self._stream is not None:
            self._stream.cancel()
        self._stream = asyncio.create_task(self._run(), name="taskgate-client-subscriptions")

    def _filter(self) -> dict[str, Any]:
        wanted: dict[str, Any] = dict.fromkeys(sorted(self._kinds), True)
        if self._uris:
            wanted["resourceSubscriptions"] = sorted(self._uris)
        if self._tasks:
            wanted["taskIds"] = sorted(self._tasks)
        return wanted

    async def _run(self) -> None:
        await clock.sleep(GATHER_SECONDS)  # several wishes at once become one stream
        pause = 0.5
        while wanted := self._filter():
            try:
                await self._listen({"notifications": wanted}, STREAM_SECONDS)
            except (ServerError, HttpRefusal) as error:
                if isinstance(error, ServerError) or error.status < 500:
                    self._refused = isinstance(error, ServerError) and error.code == -32601
                    return
            except ClientError:
                pass
            await clock.sleep(pause * random.uniform(1.0, 1.3))
            pause = min(pause * 2, LONGEST_PAUSE)


NOTICE_TIMEOUT = 5.0
SAFE_TO_REPEAT = ABOUT_TASKS | {
    "ping",
    "server/discover",
    "tools/list",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "completion/complete",
    "logging/setLevel",
}
"""Sent again by the client itself when the connection breaks. Any other method may run something."""


class Conversation:
    """One open line to one server."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.answering = Answering(options)
        self.subscriptions = Subscriptions(self._listen)
        self._inbound = Inbound(options, self.answering, self._post)
        # Not from 1: two processes may share a session (see `ticket`), and their requests must not be confused.
        self._ids = itertools.count(random.randrange(1, 2**30))
        self._renewing = asyncio.Lock()
        self._transport: Transport
        self.dialect: Dialect

    @property
    def generation(self) -> Generation:
        return self.dialect.generation

    async def begin(self, transport: Transport, dialect: Dialect) -> None:
        self._transport, self.dialect = transport, dialect
        await self._open_listener()

    @property
    def ticket(self) -> dict[str, Any] | None:
        """What another process needs to go on in this session; None where there is no session to share."""
        session_id = self._transport.session_id
        if session_id is None or not isinstance(self.dialect, Stateful):
            return None
        return {"session_id": session_id, "initialized": dict(self.dialect.initialized)}

    async def close(self) -> None:
        await self.subscriptions.close()
        await self._inbound.close()

    def deliver(self, message: Message) -> None:
        """Take a message that the server sent on its own account."""
        self._inbound.deliver(message)

    def on(self, method: str, listener: Listener) -> Callable[[], None]:
        return self._inbound.on(method, listener)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._inbound.spawn(work)

    def next_token(self) -> str:
        """A progress token that no other request of this session uses."""
        return f"tg-{next(self._ids)}"

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        tool: Tool | None = None,
        long: bool = False,
    ) -> dict[str, Any]:
        """Send a request and return its result."""
        try:
            return await self._answered(method, params or {}, timeout, tool, long)
        except ClientError as error:
            if is_about_tasks(method, params or {}):
                error.call_was_sent_before()
            raise

    async def _answered(
        self, method: str, params: dict[str, Any], timeout: float | None, tool: Tool | None, long: bool
    ) -> dict[str, Any]:
        limit = self.options.request_timeout if timeout is None else timeout
        dialect = self.dialect
        try:
            message = await self._exchange(method, params, tool, limit, long)
        except SessionExpired as error:
            if error.executed != "no":
                raise
            await self._renew_unsent(dialect)  # 404 proves that the request was not executed
            message = await self._exchange(method, params, tool, limit, long)
        except ConnectionLost:
            if long or method not in SAFE_TO_REPEAT:
                raise
            message = await self._exchange(method, params, tool, limit, long)
        return _result_of(message)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params:
            message["params"] = params
        await self._post(encode(message))

    async def pages(self, method: str, key: str, timeout: float | None) -> AsyncIterator[Any]:
        """The entries of a list, page after page."""
        cursor: Any = None
        seen: set[str] = set()
        for _ in range(self.options.max_pages):
            result = await self.request(method, {} if cursor is None else {"cursor": cursor}, timeout=timeout)
            entries = result.get(key)
            if not isinstance(entries, list):
                raise InvalidReply(f"the server's answer to {method} has no list of {key}")
            for entry in entries:
                yield entry
            cursor = result.get("nextCursor")
            if cursor is None:
                return
            if str(cursor) in seen:
                raise InvalidReply(f"the server's pages of {method} go round in circles")
            seen.add(str(cursor))
        raise InvalidReply(f"{method} has more than {self.options.max_pages} pages")

    async def _exchange(
        self, method: str, params: dict[str, Any], tool: Tool | None, timeout: float, long: bool
    ) -> Message:
        request_id = next(self._ids)
        outgoing = self.dialect.frame(request_id, method, params, tool, long=long)
        try:
            return await self._transport.exchange(outgoing, timeout)
        except (asyncio.CancelledError, DeadlineExceeded):
            if not self._transport.closing_cancels and "task" not in params:
                notice = {"requestId": request_id, "reason": "the client gave up waiting"}
                self.spawn(self.notify("notifications/cancelled", notice))
            raise

    async def _renew_unsent(self, expired: Dialect) -> None:
        try:
            await self._renew(expired)
        except ClientError as error:
            error.no_call_was_sent()
            raise

    async def _renew(self, expired: Dialect) -> None:
        """The server forgot the session: shake hands again, once, however many requests noticed."""
        async with self._renewing:
            if self.dialect is not expired:
                return
            await self._transport.restart()
            self.dialect = await shake_hands(self._transport, self.options, self.options.connect_timeout)
            await self._open_listener()

    async def _open_listener(self) -> None:
        if self.generation is Generation.STATEFUL and isinstance(self._transport, StreamableHttp):
            await self._transport.open_listener()

    async def _post(self, body: bytes) -> None:
        await self._transport.post(body, NOTICE_TIMEOUT)

    async def _listen(self, params: dict[str, Any], timeout: float) -> None:
        await self.request("subscriptions/listen", params, timeout=timeout, long=True)


def _result_of(message: Message) -> dict[str, Any]:
    error = message.get("error")
    if error is not None:
        if not isinstance(error, dict):
            raise InvalidReply("the server's error is not an object")
        code = error.get("code")
        raise ServerError(code if isinstance(code, int) else 0, str(error.get("message", "")), error.get("data"))
    result = message.get("result")
    if not isinstance(result, dict):
        raise InvalidReply("the server's result is not an object")
    return result
