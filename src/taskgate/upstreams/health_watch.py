"""Ping servers periodically, and report when one stops or starts responding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from taskgate.core.errors import TaskgateError

EVERY_S: Final = 30.0
WHEN_DEGRADED_S: Final = 5.0
PING_TIMEOUT_S: Final = 5.0
MAX_MISSED_PINGS: Final = 3


class Pingable(Protocol):
    async def round_trip(self, timeout_s: float) -> None:
        """Send a request without side effects. Raises if the server does not respond."""
        ...


LinkT = TypeVar("LinkT", bound=Pingable)


class HealthWatch(Generic[LinkT]):
    """Pings links. `changed` is called when the server stops or starts responding, `on_unresponsive` for each link that missed
    several pings."""

    def __init__(
        self,
        links: Callable[[], Sequence[LinkT]],
        changed: Callable[[bool, str], None],
        on_unresponsive: Callable[[LinkT], None],
    ) -> None:
        self.degraded = False
        self._links = links
        self._changed = changed
        self._on_unresponsive = on_unresponsive
        self._missed: dict[LinkT, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Start pinging, until there is no open link."""
        if self._timer is None and self._pinging is None and not self._closed:
            self._next()

    def _next(self) -> None:
        wait = WHEN_DEGRADED_S if self.degraded else EVERY_S
        self._timer = asyncio.get_running_loop().call_later(wait, self._due)

    def _due(self) -> None:
        self._timer = None
        links = self._links()
        if not links or self._closed:
            # The next connection starts the watch again.
            self.degraded = False
            self._missed.clear()
            return
        self._pinging = asyncio.get_running_loop().create_task(self._ping(links))

    async def _ping(self, links: Sequence[LinkT]) -> None:
        found = await asyncio.gather(*(self._problem_of(link) for link in links))
        problems = [problem for problem in found if problem is not None]
        before = self._missed
        self._missed = {
            link: before.get(link, 0) + 1 for link, problem in zip(links, found, strict=True) if problem is not None
        }
        self._found(not problems, problems[0] if problems else "")
        self._pinging = None
        self._next()
        for link in [link for link, rounds in self._missed.items() if rounds >= MAX_MISSED_PINGS]:
            self._on_unresponsive(link)

    async def _problem_of(self, link: LinkT) -> str | None:
        try:
            await link.round_trip(PING_TIMEOUT_S)
        except TaskgateError as problem:
            return problem.message
        return None

    def _found(self, answers: bool, why: str) -> None:
        if answers is self.degraded:
            self.degraded = not answers
            self._changed(answers, why)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.gather(self._pinging, return_exceptions=True)
