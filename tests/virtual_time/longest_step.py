"""The longest step of a gateway on the loop in CPU time, without the work of the test's callers and servers."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.virtual_time.loop import PROCESS, Process, run_into

GATEWAY_THRESHOLDS = (1_500, 1_000_000_000, 1_000_000_000)
"""As `taskgate.garbage_collection` sets them: while it handles calls, a gateway collects young objects only."""


@dataclass(slots=True)
class Longest:
    seconds: float = 0.0
    where: str = ""
    steps: int = 0


@contextmanager
def longest_step(process: Process | None) -> Iterator[Longest]:
    """Of everything that this gateway does on the loop while the block runs; None: of what belongs to no gateway."""
    longest = Longest()
    usual: Any = asyncio.Handle._run

    def measured(handle: Any) -> None:
        # What a gateway gives to a thread runs on this loop, too, but blocks no caller in a real one.
        if handle._context.get(PROCESS) is not process or handle._callback is run_into:
            usual(handle)
            return
        began = time.thread_time()
        usual(handle)
        took = time.thread_time() - began
        longest.steps += 1
        if took > longest.seconds:
            longest.seconds, longest.where = took, repr(handle)

    asyncio.Handle._run = measured  # type: ignore[assignment]
    thresholds = gc.get_threshold()
    gc.set_threshold(*GATEWAY_THRESHOLDS)
    try:
        yield longest
    finally:
        gc.set_threshold(*thresholds)
        asyncio.Handle._run = usual
