"""The time, for everything in the package: the only module that asks the system for it.

Every module calls `clock.monotonic()`, `clock.wall()` and `clock.sleep()` through this module, so that the tests can put a
virtual clock in their place (`install`): a call that is promoted after 45 seconds is then tested in a millisecond and cannot be
late. `asyncio.timeout` and `loop.call_later` follow the event loop's own time, which the tests' loop makes virtual as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_monotonic: Callable[[], float] = time.monotonic
_wall: Callable[[], float] = time.time

sleep = asyncio.sleep


def monotonic() -> float:
    """Seconds that never go back, comparable with the running event loop's `time()`."""
    return _monotonic()


def wall() -> float:
    """Seconds since 1970, as people and other machines count them."""
    return _wall()


def wall_ms() -> int:
    return int(_wall() * 1000)


def install(monotonic_source: Callable[[], float], wall_source: Callable[[], float]) -> Callable[[], None]:
    """Take the time from elsewhere, for tests; returns how to go back."""
    global _monotonic, _wall
    before = _monotonic, _wall
    _monotonic, _wall = monotonic_source, wall_source

    def restore() -> None:
        global _monotonic, _wall
        _monotonic, _wall = before

    return restore
