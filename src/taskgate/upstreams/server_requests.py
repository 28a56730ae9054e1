"""Answer the requests of a stateful server: pings, unsupported methods, and requests that a caller must answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.questions.question import QUESTION_METHODS, Question
from taskgate.core.wire import Message
from taskgate.ports.link import Link, Listener
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.telemetry.logs import log
from taskgate.upstreams.reply_queue import ReplyQueue
from taskgate.upstreams.server_tasks import related_task, shown_params

_METHOD_NOT_FOUND: Final = wire.encode({"code": -32601, "message": "Method not found"})
_TOO_MANY_QUESTIONS: Final = wire.encode({"code": -32603, "message": "Too many requests of this server are open"})
MAX_QUESTIONS: Final = 1000
"""Maximum number of open requests of the server on one link."""

CallOf = Callable[[Message], UpstreamCall | None]


class ServerRequests:
    def __init__(
        self,
        link: Link,
        listener: Listener,
        send: Callable[[bytes], Awaitable[None]],
        spawn: Callable[[Any], asyncio.Task[None]],
    ) -> None:
        """`send` must not raise. `spawn` runs a task that the link cancels when it closes."""
        self._link = link
        self._listener = listener
        self._send = send
        self._spawn = spawn
        self._open: dict[bytes, asyncio.Task[None]] = {}
        self._replies = ReplyQueue(send, spawn)

    def handle(self, message: Message, call_of: CallOf, open_calls: Callable[[], list[UpstreamCall]]) -> None:
        """Answer a request. `call_of` returns the call that it belongs to, if known."""
        if message.method == "ping":
            self._queue_reply(wire.success(message.id or b"null", b"{}"))
        elif message.method not in QUESTION_METHODS or message.id is None:
            self._queue_reply(wire.failure(message.id, _METHOD_NOT_FOUND))
        elif len(self._open) >= MAX_QUESTIONS:
            self._queue_reply(wire.failure(message.id, _TOO_MANY_QUESTIONS))
        else:
            self._open[message.id] = self._spawn(self._answer(message, call_of(message), open_calls()))

    def cancel(self, request_id: object) -> None:
        """Cancel a request that the server has cancelled."""
        task = self._open.get(wire.encode(request_id))
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for task in list(self._open.values()):
            task.cancel()

    def _queue_reply(self, body: bytes) -> None:
        if not self._replies.reply(body):
            log.warning(
                "server sends requests faster than they can be answered; some replies were dropped",
                server=self._link.server,
            )

    async def _answer(self, message: Message, call: UpstreamCall | None, open_calls: list[UpstreamCall]) -> None:
        """Answer a request of the server. `call` is the one that it belongs to, if known."""
        server = self._link.server
        question = Question(message.method, shown_params(message), server, related_task(message.params))
        try:
            if question.is_list or call is None:
                answer = await self._listener.on_question(self._link, question, open_calls)
            else:
                answer = await call.on_question(question)
        finally:
            self._open.pop(message.id or b"", None)
        if answer.result is not None:
            await self._send(wire.success(message.id or b"null", answer.result))
        else:
            await self._send(wire.failure(message.id, answer.error or _METHOD_NOT_FOUND))
