"""When Python's garbage collector runs, and when free memory is returned to the operating system.

A full collection takes 250 ms with 10,000 open tasks and cannot be divided, so the gateway chooses when it runs. The C
library keeps freed memory for later use: after large results that is tens of megabytes, which an idle gateway returns.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from typing import Final

from taskgate import clock

_YOUNG_OBJECTS: Final = 1_500
"""Collecting this many takes about 0.7 ms. Survivors are not collected a second time: it would take 1 to 3 ms, twenty times a
second where every call creates a task, and find next to nothing."""
_NEVER: Final = 1_000_000_000
_GROWTH: Final = 2.0
_MIN_GROWTH_BLOCKS: Final = 1_500_000
"""About 150 MB of small objects: what cycles may hold before a full collection runs under load. 15,000 open tasks are less."""
_GROWTH_WHEN_IDLE: Final = 1.1
_IDLE_SHARE: Final = 0.1
_IDLE_CHECKS: Final = 30
"""A full collection runs after this many idle seconds in a row. Shorter pauses are common between bursts of calls."""


class GarbageCollector:
    """Collects young objects once, and all objects only when the gateway is idle or memory has doubled.

    Objects that exist at the start are examined once, when the gateway is idle for the first time. A call leaves few cycles
    behind, and most of them are young. Python's own rule collects everything whenever the number of objects has grown by a
    quarter, even if all of them are alive: with thousands of open tasks every caller would wait for that repeatedly.
    """

    def __init__(self) -> None:
        # Garbage of the imports has been collected; that of the start is when the gateway is idle, to shorten the start.
        gc.freeze()
        self._is_start_collected = False
        # Since Python 3.14 old objects are collected in increments; the second number sets their size.
        gc.set_threshold(_YOUNG_OBJECTS, 10 if sys.version_info >= (3, 14) else _NEVER, _NEVER)
        self._at, self._spent = clock.monotonic(), time.process_time()
        self._blocks = sys.getallocatedblocks()
        self._idle_checks = 0

    def maintain(self) -> None:
        """Run a full collection if it is due. Called about once a second."""
        blocks, now, spent = sys.getallocatedblocks(), clock.monotonic(), time.process_time()
        self._idle_checks = self._idle_checks + 1 if spent - self._spent < _IDLE_SHARE * (now - self._at) else 0
        self._at, self._spent = now, spent
        is_idle = self._idle_checks >= _IDLE_CHECKS
        if is_idle and not self._is_start_collected:
            self._is_start_collected = True
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._blocks = sys.getallocatedblocks()
        elif blocks > max(self._blocks * _GROWTH, self._blocks + _MIN_GROWTH_BLOCKS) or (
            is_idle and blocks > self._blocks * _GROWTH_WHEN_IDLE
        ):
            gc.collect()
            self._blocks = sys.getallocatedblocks()
        if self._idle_checks == _IDLE_CHECKS:
            # Once in each idle period: as long as nothing happens, nothing more becomes free.
            return_free_memory()


def return_free_memory() -> None:
    """Return memory that the C library keeps to the operating system. Does nothing where that is not glibc."""
    # Imported here: a gateway that is never idle does not need it.
    import ctypes

    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
