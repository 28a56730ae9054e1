"""The time, for everything in the package: the only module that asks the system for it.

Every module calls `clock.monotonic()`, `clock.wall()` and `clock.sleep()` through this module, never by a name imported from it, so
that the tests can put a virtual clock in their place (`install`): a call that is promoted after 45 seconds is then tested in a
millisecond and cannot be late. `asyncio.timeout` and `loop.call_later` follow the event loop's own time, which the tests' loop
makes virtual as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

monotonic: Callable[[], float] = time.monotonic
"""Seconds that never go back, comparable with the running event loop's `time()`."""
wall: Callable[[], float] = time.time
"""Seconds since 1970, as people and other machines count them. It can be set, forward and back."""
sleep = asyncio.sleep


def wall_ms() -> int:
    return int(wall() * 1000)


class Expiry:
    """A moment of the wall clock at which something ends, measured by both clocks: whichever comes first counts.

    The wall clock may be set back, and the monotonic clock stops while a machine is suspended.
    """

    __slots__ = ("monotonic", "wall")

    def __init__(self, wall_s: float) -> None:
        self.wall = wall_s
        self.monotonic = monotonic() + wall_s - wall()

    @property
    def passed(self) -> bool:
        return wall() >= self.wall or monotonic() >= self.monotonic


def install(monotonic_source: Callable[[], float], wall_source: Callable[[], float]) -> Callable[[], None]:
    """Take the time from elsewhere, for tests; returns how to go back."""
    global monotonic, wall
    before = monotonic, wall
    monotonic, wall = monotonic_source, wall_source

    def restore() -> None:
        global monotonic, wall
        monotonic, wall = before

    return restore


Key = TypeVar("Key", bound=Hashable)


class Expiries(Generic[Key]):
    """Ends of what must outlive neither clock: the one that can be set, nor the monotonic one.

    When something is first seen, the time that it has left is noted and from then on counted by the monotonic clock as well,
    so that setting the clock back prolongs nothing. While the machine sleeps the monotonic clock stops; then the other is first.
    """

    MOST = 100_000
    """The oldest beyond that end by the clock that can be set alone."""

    def __init__(self) -> None:
        self._ends: dict[Key, float] = {}

    def note(self, key: Key, left_s: float) -> None:
        """So much time is left now. Only the first time counts."""
        if key not in self._ends:
            self._ends[key] = monotonic() + left_s
            if len(self._ends) > self.MOST:
                self._ends.pop(next(iter(self._ends)), None)

    def passed(self, key: Key, left_s: float) -> bool:
        """Whether its time is over. `left_s`: what is left by the clock that can be set."""
        if left_s <= 0:
            return True
        end = self._ends.get(key)
        if end is None:
            self.note(key, left_s)
            return False
        return monotonic() >= end

    def left_s(self, key: Key) -> float | None:
        """What is left by the monotonic clock; None for what was not seen before."""
        end = self._ends.get(key)
        return None if end is None else end - monotonic()

    def over(self) -> list[Key]:
        """Everything whose time is over by the monotonic clock, until it is forgotten."""
        now = monotonic()
        return [key for key, end in list(self._ends.items()) if end <= now]

    def forget(self, key: Key) -> None:
        self._ends.pop(key, None)
