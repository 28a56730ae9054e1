"""Limits on failed attempts to prove an identity: wrong tokens by address, wrong passphrases of the operator.

An attempt counts from the moment it begins, before anything is awaited, so parallel guesses cannot all pass the check before the
first of them has failed. At most as many attempts of a key are in progress as may still fail; further ones wait for those, and are
refused once the limit is reached. Credentials that are known already are never held up by this: a limit that others reached from
the same address does not lock out a caller that is in.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from types import TracebackType
from typing import Final, Self

from taskgate import clock

MOST_KEYS: Final = 10_000
MOST_WAITING: Final = 1_000
WAIT_S: Final = 10.0


class TooManyAttempts(Exception):
    def __init__(self, retry_after_s: int) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


class _Window:
    """The attempts of one key: how many failed in the present window, and how many are in progress."""

    __slots__ = ("ends", "failures", "pending", "waiting")

    def __init__(self) -> None:
        self.failures = 0
        self.ends = 0.0
        self.pending = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    def begin(self) -> None:
        self.pending += 1

    def end(self) -> None:
        self.pending -= 1

    def left_s(self) -> float:
        """How long the present window lasts. Failures of one that is over do not count any more."""
        left = self.ends - clock.monotonic()
        if left <= 0:
            self.failures = 0
        return left

    def fail(self, within_s: float) -> None:
        if self.left_s() <= 0:
            self.ends = clock.monotonic() + within_s
        self.failures += 1

    def wake(self) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


class FailedAttempts:
    def __init__(self, most: int, within_s: float) -> None:
        """At most `most` failures of one key in `within_s` seconds, counted from the first of them."""
        self._most = most
        self._within_s = within_s
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def check(self, key: str) -> None:
        """Raises TooManyAttempts."""
        window = self._windows.get(key)
        if window is not None:
            self._check(window)

    def failed(self, key: str) -> None:
        """Count a failure that was found out without waiting. Raises TooManyAttempts where the limit was reached before it."""
        window = self._window(key)
        self._check(window)
        self._count(window)

    async def begin(self, key: str) -> PendingAttempt:
        """Take a place for one attempt, which must be ended. Raises TooManyAttempts."""
        window = self._window(key)
        deadline = clock.monotonic() + WAIT_S
        while True:
            self._check(window)
            if window.failures + window.pending < self._most:
                window.begin()
                return PendingAttempt(self, window)
            if len(window.waiting) >= MOST_WAITING or clock.monotonic() >= deadline:
                raise TooManyAttempts(1)
            await self._wait(window, deadline)

    async def _wait(self, window: _Window, deadline: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        window.waiting.append(waiter)
        try:
            await asyncio.wait((waiter,), timeout=max(0.0, deadline - clock.monotonic()))
        finally:
            window.waiting.remove(waiter)

    def end(self, window: _Window, *, failed: bool) -> None:
        window.end()
        if failed:
            self._count(window)
        window.wake()

    def _check(self, window: _Window) -> None:
        left = window.left_s()
        if window.failures >= self._most:
            raise TooManyAttempts(max(1, round(left)))

    def _count(self, window: _Window) -> None:
        window.fail(self._within_s)

    def _window(self, key: str) -> _Window:
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window()
            if len(self._windows) > MOST_KEYS:
                self._forget_one()
        else:
            self._windows.move_to_end(key)
        return window

    def _forget_one(self) -> None:
        """The one that was used longest ago and has nothing in progress."""
        idle = next((key for key, window in self._windows.items() if not window.pending and not window.waiting), None)
        if idle is not None:
            del self._windows[idle]


class PendingAttempt:
    """One attempt in progress. It counts as failed unless it was found good, or could not be examined, before it ends."""

    __slots__ = ("_attempts", "_failed", "_window")

    def __init__(self, attempts: FailedAttempts, window: _Window) -> None:
        self._attempts = attempts
        self._window = window
        self._failed = True

    def passed(self) -> None:
        self._failed = False

    def not_examined(self) -> None:
        """Whether it was good could not be found out, which is not the caller's fault."""
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attempts.end(self._window, failed=self._failed)
