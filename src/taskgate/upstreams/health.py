"""Is the server still there? A real round trip now and then over one of its links, and no task while nothing is asked.

A server that does not answer in time is degraded: it is still used, because a slow answer is better than none, and it is asked
more often until it answers again. A lost connection is not noticed here but by the link itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from taskgate.core.errors import TaskgateError

EVERY_S: Final = 30.0
WHEN_DEGRADED_S: Final = 5.0
PATIENCE_S: Final = 5.0


class Answering(Protocol):
    async def round_trip(self, timeout_s: float) -> None:
        """Ask the server something that costs it nothing; raises when it does not answer."""
        ...


class HealthWatch:
    def __init__(self, link: Callable[[], Answering | None], changed: Callable[[bool, str], None]) -> None:
        self.degraded = False
        self._link = link
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """From now on, until there is no link to ask over."""
        if self._timer is None and self._asking is None and not self._closed:
            self._next()

    def _next(self) -> None:
        wait = WHEN_DEGRADED_S if self.degraded else EVERY_S
        self._timer = asyncio.get_running_loop().call_later(wait, self._due)

    def _due(self) -> None:
        self._timer = None
        link = self._link()
        if link is None or self._closed:
            # Whoever connects again starts the watch again.
            self.degraded = False
            return
        self._asking = asyncio.get_running_loop().create_task(self._ask(link))

    async def _ask(self, link: Answering) -> None:
        try:
            await link.round_trip(PATIENCE_S)
        except TaskgateError as problem:
            self._found(False, problem.message)
        else:
            self._found(True, "")
        self._asking = None
        self._next()

    def _found(self, answers: bool, why: str) -> None:
        if answers is self.degraded:
            self.degraded = not answers
            self._changed(answers, why)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
