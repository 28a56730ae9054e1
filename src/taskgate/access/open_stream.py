"""An event stream that ends with its credential, with a reason, or as soon as its client hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from taskgate.access.authorize import Authorized
from taskgate.access.open_responses import Ended, Hold, OpenResponses

CONNECTION: Final = "taskgate.connection"
"""Where an ASGI scope has the connection that a request came on."""
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class StreamConnection(Protocol):
    def when_lost(self, hook: Callable[[], None] | None) -> None:
        """What to call when the peer hangs up during the request that is being answered."""


class OpenStream:
    """`with OpenStream(...) as stream:` sends by `stream.send`, and then `await stream.finish()`.

    The body of the `with` is left early, without an exception, when the credential ends or the client hangs up.
    """

    def __init__(
        self, connection: StreamConnection | None, send: Send, responses: OpenResponses, authorized: Authorized
    ) -> None:
        self._connection = connection
        self._send = send
        self._responses = responses
        self._admission = authorized
        self._work: asyncio.Task[Any] | None = None
        self._hold: Hold | None = None
        self._lost = False
        self._started = False
        self._over = False
        self._tail = b"\n\n"
        self.ended: Ended | None = None
        """Why it was ended, if its credential did."""

    def __enter__(self) -> Self:
        self._work = asyncio.current_task()
        if self._connection is not None:
            self._connection.when_lost(self._hang_up)
        self._hold = self._responses.hold(self._admission, self._end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._connection is not None:
            self._connection.when_lost(None)
        if self._hold is not None:
            self._hold.release()
        if not isinstance(problem, asyncio.CancelledError) or not (self._lost or self.ended is not None):
            return False
        assert self._work is not None
        # Another cancellation that came besides is not swallowed.
        return self._work.uncancel() == 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._started = True
        else:
            self._tail = (self._tail + message.get("body", b""))[-2:]
            self._over = not message.get("more_body", False)
        await self._send(message)

    async def finish(self) -> None:
        """End the response, with the reason as its last event if there is one."""
        if self._lost or self._over or not self._started:
            return
        # In the middle of an event that was passed on in pieces there is no place for another one.
        last = self.ended.event if self.ended is not None and self._tail == b"\n\n" else b""
        self._over = True
        await self._send({"type": "http.response.body", "body": last})

    @property
    def started(self) -> bool:
        return self._started

    def _hang_up(self) -> None:
        if not self._lost and self._work is not None:
            self._lost = True
            self._work.cancel()

    def _end(self, ended: Ended) -> None:
        if self.ended is None and not self._lost and self._work is not None:
            self.ended = ended
            self._work.cancel()
