"""An event stream that ends when its credential ends, with a reason, or when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from taskgate.access.authorize import Authorized
from taskgate.access.open_responses import Ended, Hold, OpenResponses

CONNECTION: Final = "taskgate.connection"
"""The key of the connection in an ASGI scope."""
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class StreamConnection(Protocol):
    def when_lost(self, hook: Callable[[], None] | None) -> None:
        """Set the function to call if the peer disconnects during the current request."""


class OpenStream:
    """Use as `with OpenStream(...) as stream:`, send with `stream.send`, then `await stream.finish()`.

    The body of the `with` is left early, without an exception, if the credential ends or the client disconnects.
    """

    def __init__(
        self, connection: StreamConnection | None, send: Send, responses: OpenResponses, authorized: Authorized
    ) -> None:
        self._connection = connection
        self._send = send
        self._responses = responses
        self._authorized = authorized
        self._work: asyncio.Task[Any] | None = None
        self._hold: Hold | None = None
        self._lost = False
        self._started = False
        self._over = False
        self._tail = b"\n\n"
        self.ended: Ended | None = None
        """Why the stream was ended, if its credential ended."""

    def __enter__(self) -> Self:
        self._work = asyncio.current_task()
        if self._connection is not None:
            self._connection.when_lost(self._on_disconnect)
        self._hold = self._responses.hold(self._authorized, self._end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._connection is not None:
            self._connection.when_lost(None)
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()
        if not isinstance(problem, asyncio.CancelledError) or not (self._lost or self.ended is not None):
            return False
        assert self._work is not None
        # A further cancellation is not suppressed.
        return self._work.uncancel() == 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._started = True
        else:
            self._tail = (self._tail + message.get("body", b""))[-2:]
            self._over = not message.get("more_body", False)
        await self._send(message)

    async def finish(self) -> None:
        """End the response, with the reason as its last event if its credential ended."""
        if self._lost or self._over or not self._started:
            return
        # No event can be inserted in the middle of a relayed one.
        last = self.ended.event if self.ended is not None and self._tail == b"\n\n" else b""
        self._over = True
        await self._send({"type": "http.response.body", "body": last})

    @property
    def started(self) -> bool:
        return self._started

    def _on_disconnect(self) -> None:
        if not self._lost and self._work is not None:
            self._lost = True
            self._work.cancel()

    def _end(self, ended: Ended) -> None:
        if self.ended is None and not self._lost and self._work is not None:
            self.ended = ended
            self._work.cancel()
