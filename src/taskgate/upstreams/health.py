"""Is the server still there, and when is it tried again?

While it is: a real round trip now and then over its links, and no task while nothing is asked. A server that does not answer in
time is degraded: it is still used, because a slow answer is better than none, and it is asked more often until it answers again. A
link that stays silent for several rounds is reported as silent, and its owner decides what to do about it. A lost connection is
not noticed here but by the link itself.

After a failure: full jitter between nothing and a bound that doubles, from half a second to a minute, for ever; and a program that
dies too often is left alone for a while.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from taskgate.core.errors import TaskgateError

FIRST_S = 0.5
LONGEST_S = 60.0


class Backoff:
    """Counts failures in a row; one success forgets them all."""

    def __init__(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def failed(self, now: float) -> None:
        bound = min(LONGEST_S, FIRST_S * 2 ** min(self.attempt, 10))
        self.attempt += 1
        self.retry_at = now + random.uniform(0, bound)

    def leave_alone(self, until: float) -> None:
        """Not before this time, whatever the count says."""
        self.attempt = max(1, self.attempt)
        self.retry_at = max(self.retry_at, until)

    def succeeded(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self.retry_at - now)


LEFT_ALONE_S: Final = 60.0


class CrashLoop:
    def __init__(self, limit: int, within_s: float) -> None:
        self.limit = limit
        self.within_s = within_s
        self._crashes: deque[float] = deque(maxlen=limit)
        self._until = 0.0

    def crashed(self, now: float) -> bool:
        """Remember a crash. True if that was one too many: leave the program alone for a minute."""
        self._crashes.append(now)
        if len(self._crashes) < self.limit or now - self._crashes[0] > self.within_s:
            return False
        self._crashes.clear()
        self._until = now + LEFT_ALONE_S
        return True

    def left_alone_s(self, now: float) -> float:
        """How much longer it is left alone."""
        return max(0.0, self._until - now)


EVERY_S: Final = 30.0
WHEN_DEGRADED_S: Final = 5.0
PATIENCE_S: Final = 5.0
SILENT_ROUNDS: Final = 3


class Answering(Protocol):
    async def round_trip(self, timeout_s: float) -> None:
        """Ask the server something that costs it nothing; raises when it does not answer."""
        ...


Asked = TypeVar("Asked", bound=Answering)


class HealthWatch(Generic[Asked]):
    """`changed` hears when the server stops and starts answering, `silent` of each link that has not answered for long."""

    def __init__(
        self,
        links: Callable[[], Sequence[Asked]],
        changed: Callable[[bool, str], None],
        silent: Callable[[Asked], None],
    ) -> None:
        self.degraded = False
        self._links = links
        self._changed = changed
        self._silent = silent
        self._missed: dict[Asked, int] = {}
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
        links = self._links()
        if not links or self._closed:
            # Whoever connects again starts the watch again.
            self.degraded = False
            self._missed.clear()
            return
        self._asking = asyncio.get_running_loop().create_task(self._ask(links))

    async def _ask(self, links: Sequence[Asked]) -> None:
        found = await asyncio.gather(*(self._problem_of(link) for link in links))
        problems = [problem for problem in found if problem is not None]
        before = self._missed
        self._missed = {
            link: before.get(link, 0) + 1 for link, problem in zip(links, found, strict=True) if problem is not None
        }
        self._found(not problems, problems[0] if problems else "")
        self._asking = None
        self._next()
        for link in [link for link, rounds in self._missed.items() if rounds >= SILENT_ROUNDS]:
            self._silent(link)

    async def _problem_of(self, link: Asked) -> str | None:
        try:
            await link.round_trip(PATIENCE_S)
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
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
