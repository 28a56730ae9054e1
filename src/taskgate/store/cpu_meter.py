"""The CPU time of one kind of work of a store, on whichever thread it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


class CpuMeter:
    """Read by the event loop. On SQLite the work runs there, on PostgreSQL in the writing and reading threads."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def counted(self, work: Callable[[A], T]) -> Callable[[A], T]:
        """Return the same function; the time of its calls is added."""

        def run(given: A) -> T:
            began = time.thread_time()
            try:
                return work(given)
            finally:
                self.spent_s += time.thread_time() - began

        return run
