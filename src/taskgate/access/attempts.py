"""Limits on failed authentication attempts: wrong tokens by address, and wrong operator passphrases.

An attempt counts from its start, before anything is awaited, so parallel guesses cannot all pass the check before the
first has failed. Per key, at most as many attempts are in progress as may still fail; others wait, and are rejected
once the limit is reached. Known credentials are not affected: failures of others from the same address do not lock out
an authenticated caller.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from types import TracebackType
from typing import Final, Self

from taskgate import clock

MAX_KEYS: Final = 10_000
MAX_WAITING: Final = 1_000
WAIT_S: Final = 10.0


class TooManyAttempts(Exception):
    def __init__(self, retry_after_s: int) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


class _Window:
    """The attempts of one key: failures in the current window, and attempts in progress."""

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
        """Return the remaining time of the window. Failures of an expired window are reset."""
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
    def __init__(self, maximum: int, within_s: float) -> None:
        """Allow `maximum` failures per key within `within_s` seconds of the first one."""
        self._most = maximum
        self._within_s = within_s
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def check(self, key: str) -> None:
        """Raise TooManyAttempts if the limit is reached."""
        window = self._windows.get(key)
        if window is not None:
            self._check(window)

    def failed(self, key: str) -> None:
        """Count a failure that was detected without waiting. Raises TooManyAttempts if the limit was already reached."""
        window = self._window(key)
        self._check(window)
        self._count(window)

    async def begin(self, key: str) -> PendingAttempt:
        """Start an attempt, which must be ended. Raises TooManyAttempts."""
        window = self._window(key)
        deadline = clock.monotonic() + WAIT_S
        while True:
            self._check(window)
            if window.failures + window.pending < self._most:
                window.begin()
                return PendingAttempt(self, window)
            if len(window.waiting) >= MAX_WAITING or clock.monotonic() >= deadline:
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
            if len(self._windows) > MAX_KEYS:
                self._forget_one()
        else:
            self._windows.move_to_end(key)
        return window

    def _forget_one(self) -> None:
        """Drop the least recently used key without attempts in progress."""
        idle = next((key for key, window in self._windows.items() if not window.pending and not window.waiting), None)
        if idle is not None:
            del self._windows[idle]


class PendingAttempt:
    """An attempt in progress. It counts as failed unless `passed` or `not_examined` is called before it ends."""

    __slots__ = ("_attempts", "_failed", "_window")

    def __init__(self, attempts: FailedAttempts, window: _Window) -> None:
        self._attempts = attempts
        self._window = window
        self._failed = True

    def passed(self) -> None:
        self._failed = False

    def not_examined(self) -> None:
        """Do not count the attempt: the credential could not be verified, which is not the caller's fault."""
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attempts.end(self._window, failed=self._failed)
