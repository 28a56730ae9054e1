"""The slots of a server with `max_concurrency`, and the queue of calls for them.

The next free slot goes to the caller with the fewest. When the queue is full, a call is refused at once and was not executed.
Plain calls and task runs share the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from taskgate.core.errors import CallerError
from taskgate.core.fair_queue import FairQueue, QueuePlace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

from taskgate.gateway.requests.admission import RETRY_AFTER_S

_NO_LIMIT: Final = 1 << 30
MAX_QUEUE_S: Final = 600.0
"""How long a plain call waits for a slot of its server. The timeout of the tool begins when the call is sent."""


class ServerQueue:
    """The slots of one server. A caller holds a slot from `enter` to `leave`."""

    def __init__(self, server: str, slots: int, max_waiting: int) -> None:
        self.server = server
        self._queue = FairQueue(slots)
        self.resize(slots, max_waiting)

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def running(self) -> int:
        return self._queue.running

    def resize(self, slots: int, max_waiting: int) -> None:
        # Neither one caller nor one tenant may fill the whole queue, so that others can still enter it.
        self._queue.limit_waiting(max_waiting, max(1, max_waiting // 2), max(1, max_waiting * 3 // 4))
        self._grant(self._queue.resize(slots))

    def remove_limit(self) -> None:
        """The budget was removed: all waiting calls get a slot."""
        self._grant(self._queue.resize(_NO_LIMIT))

    def refuse_if_full(self, caller: str) -> None:
        """Raise `overloaded` if the queue has no place for a call of this caller."""
        if self._queue.is_full_for(caller):
            raise self._overloaded()

    async def enter(self, caller: str, timeout_s: float, *, limited: bool = True) -> None:
        """Wait for a slot. Raises `overloaded` at once if the queue is full, or after `timeout_s`.

        `limited=False` is for task runs, which were accepted already.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        try:
            if self._queue.enter(caller, turn, limited=limited) is QueuePlace.RUNS:
                return
        except CallerError:
            raise self._overloaded() from None
        # Thousands may wait here, each with its own timeout; `asyncio.timeout` would take four times as long and more memory.
        timer = loop.call_later(timeout_s, _time_out, turn)
        try:
            await turn
        except BaseException as reason:
            if not self._queue.abandon(caller, turn):
                self.leave(caller)
            if isinstance(reason, TimeoutError):
                raise self._overloaded() from None
            raise
        finally:
            timer.cancel()

    def leave(self, caller: str) -> None:
        self._grant(self._queue.leave(caller))

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Hold a slot for a plain call, which is refused if it waits for too long."""
        await self.enter(caller, MAX_QUEUE_S)
        try:
            yield
        finally:
            self.leave(caller)

    def _grant(self, tickets: Iterable[object]) -> None:
        for turn in tickets:
            assert isinstance(turn, asyncio.Future)
            if not turn.done():
                turn.set_result(None)

    def _overloaded(self) -> CallerError:
        return CallerError(
            "overloaded",
            f"Too many calls are waiting for the server {self.server}. The call was not executed; try again later.",
            gate="budget",
            retry_after_s=RETRY_AFTER_S,
            data={"retry_after_ms": int(RETRY_AFTER_S * 1000)},
        )


def _time_out(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
