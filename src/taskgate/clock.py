"""The clocks of the package. No other module reads the system time.

Every module calls `clock.monotonic()`, `clock.wall()` and `clock.sleep()` through this module, never by a name imported from it, so
that the tests can put a virtual clock in their place (`install`): a call that is promoted after 45 seconds is then tested in a
millisecond and cannot be late. `asyncio.timeout` and `loop.call_later` follow the event loop's own time, which the tests' loop
makes virtual as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

monotonic: Callable[[], float] = time.monotonic
"""Seconds that never go back, comparable with the running event loop's `time()`."""
wall: Callable[[], float] = time.time
"""Seconds since 1970. This clock can be set, forward and back."""
cpu: Callable[[], float] = time.process_time
"""Seconds of CPU time that this process has used, in all its threads."""


def sleep(delay_s: float) -> Coroutine[Any, Any, None]:
    """`asyncio.sleep`, imported on use: commands without an event loop start in half the time."""
    import asyncio

    return asyncio.sleep(delay_s)


def wall_ms() -> int:
    return int(wall() * 1000)


class Expiry:
    """An expiry time given by the wall clock and measured by both clocks; the earlier one counts.

    The wall clock may be set back, and the monotonic clock stops while a machine is suspended.
    """

    __slots__ = ("monotonic", "wall")

    def __init__(self, wall_s: float) -> None:
        self.wall = wall_s
        self.monotonic = monotonic() + wall_s - wall()

    @property
    def passed(self) -> bool:
        return wall() >= self.wall or monotonic() >= self.monotonic


def install(
    monotonic_source: Callable[[], float],
    wall_source: Callable[[], float],
    cpu_source: Callable[[], float] = time.process_time,
) -> Callable[[], None]:
    """Replace the clocks, for tests; returns a function that restores them."""
    global monotonic, wall, cpu
    before = monotonic, wall, cpu
    monotonic, wall, cpu = monotonic_source, wall_source, cpu_source

    def restore() -> None:
        global monotonic, wall, cpu
        monotonic, wall, cpu = before

    return restore


Key = TypeVar("Key", bound=Hashable)


class Expiries(Generic[Key]):
    """Expiry times by key, measured by both clocks; the earlier one counts.

    When a key is first seen, its remaining time is also measured by the monotonic clock from then on, so that setting the wall
    clock back prolongs nothing. While the machine is suspended the monotonic clock stops; then the wall clock is first.
    """

    MOST = 100_000
    """Beyond this number, the oldest keys expire by the wall clock alone."""

    def __init__(self) -> None:
        self._ends: dict[Key, float] = {}

    def note(self, key: Key, left_s: float) -> None:
        """Note the remaining time of a key. Only the first call for a key has an effect."""
        if key not in self._ends:
            self._ends[key] = monotonic() + left_s
            if len(self._ends) > self.MOST:
                self._ends.pop(next(iter(self._ends)), None)

    def passed(self, key: Key, left_s: float) -> bool:
        """Return whether a key has expired. `left_s`: the remaining time by the wall clock."""
        if left_s <= 0:
            return True
        end = self._ends.get(key)
        if end is None:
            self.note(key, left_s)
            return False
        return monotonic() >= end

    def left_s(self, key: Key) -> float | None:
        """Return the remaining time by the monotonic clock; None for an unknown key."""
        end = self._ends.get(key)
        return None if end is None else end - monotonic()

    def over(self) -> list[Key]:
        """Return the keys that have expired by the monotonic clock and were not forgotten."""
        now = monotonic()
        return [key for key, end in list(self._ends.items()) if end <= now]

    def forget(self, key: Key) -> None:
        self._ends.pop(key, None)
