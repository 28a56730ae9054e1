"""Send requests and return their results, independent of their meaning.

Numbers requests, frames them with the dialect, sends them with the transport, cancels abandoned ones, renews an expired
session, and repeats requests that are safe to repeat. Owns the inbound dispatcher. Independent of tools and tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from taskgate.client.dialect import Dialect
from taskgate.client.errors import (
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidReply,
    ServerError,
    SessionExpired,
)
from taskgate.client.inbound import Inbound, Listener
from taskgate.client.messages import Message, encode
from taskgate.client.options import Generation, Options
from taskgate.client.questions import Answering
from taskgate.client.results import Tool
from taskgate.client.stateful import Stateful, initialize_session
from taskgate.client.streamable_http import StreamableHttp
from taskgate.client.subscriptions import Subscriptions
from taskgate.client.transport import Transport
from taskgate.mcp.earlier_calls import ABOUT_TASKS, is_about_tasks

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
"""Methods that the client repeats after a lost connection. Others may have side effects."""


class Conversation:
    """Requests to one server over one transport."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.answering = Answering(options)
        self.subscriptions = Subscriptions(self._listen)
        self._inbound = Inbound(options, self.answering, self._post)
        # A random start, because two processes may share a session (see `ticket`) and their ids must differ.
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
        """Credentials to continue this session in another process, or None without a session."""
        session_id = self._transport.session_id
        if session_id is None or not isinstance(self.dialect, Stateful):
            return None
        return {"session_id": session_id, "initialized": dict(self.dialect.initialized)}

    async def close(self) -> None:
        await self.subscriptions.close()
        await self._inbound.close()

    def deliver(self, message: Message) -> None:
        """Take a notification or a request of the server."""
        self._inbound.deliver(message)

    def on(self, method: str, listener: Listener) -> Callable[[], None]:
        return self._inbound.on(method, listener)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._inbound.spawn(work)

    def next_token(self) -> str:
        """Return a unique progress token."""
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
            await self._renew_unsent(dialect)  # 404: the request was not executed
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
        """Yield the entries of a list from all pages. Raises InvalidReply for a repeated cursor or too many pages."""
        cursor: Any = None
        seen: set[str] = set()
        for _ in range(self.options.max_pages):
            result = await self.request(method, {} if cursor is None else {"cursor": cursor}, timeout=timeout)
            entries = result.get(key)
            if not isinstance(entries, list):
                raise InvalidReply(f"the result of {method} has no list of {key}")
            for entry in entries:
                yield entry
            cursor = result.get("nextCursor")
            if cursor is None:
                return
            if str(cursor) in seen:
                raise InvalidReply(f"the server repeated a cursor of {method}")
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
                notice = {"requestId": request_id, "reason": "timeout or cancellation in the client"}
                self.spawn(self.notify("notifications/cancelled", notice))
            raise

    async def _renew_unsent(self, expired: Dialect) -> None:
        try:
            await self._renew(expired)
        except ClientError as error:
            error.no_call_was_sent()
            raise

    async def _renew(self, expired: Dialect) -> None:
        """Repeat the handshake after the session expired, once for all requests that failed."""
        async with self._renewing:
            if self.dialect is not expired:
                return
            await self._transport.restart()
            self.dialect = await initialize_session(self._transport, self.options, self.options.connect_timeout)
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
