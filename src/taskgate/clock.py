"""The time, for everything in the package: the only module that asks the system for it.

Every module calls `clock.monotonic()`, `clock.wall()` and `clock.sleep()` through this module, never by a name imported from it, so
that the tests can put a virtual clock in their place (`install`): a call that is promoted after 45 seconds is then tested in a
millisecond and cannot be late. `asyncio.timeout` and `loop.call_later` follow the event loop's own time, which the tests' loop
makes virtual as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

monotonic: Callable[[], float] = time.monotonic
"""Seconds that never go back, comparable with the running event loop's `time()`."""
wall: Callable[[], float] = time.time
"""Seconds since 1970, as people and other machines count them."""
sleep = asyncio.sleep


def wall_ms() -> int:
    return int(wall() * 1000)


def install(monotonic_source: Callable[[], float], wall_source: Callable[[], float]) -> Callable[[], None]:
    """Take the time from elsewhere, for tests; returns how to go back."""
    global monotonic, wall
    before = monotonic, wall
    monotonic, wall = monotonic_source, wall_source

    def restore() -> None:
        global monotonic, wall
        monotonic, wall = before

    return restore
