"""The CPU time of a synchronous step, during which an event loop is blocked.

A limit in milliseconds applies to an idle processor. Beside other work the same step takes up to twice its processor
time (shared caches, shared cores), so every measurement is compared with a fixed piece of work measured at the same time,
and is converted to the time of an idle processor.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

PAUSE_S: Final = 0.02
"""The longest that anything a peer sends may hold up everybody else."""

_CONTROL_S: Final = 0.0014
"""The CPU time of the fixed piece of work on an idle processor of the machine on which the limits were set."""
_DOCUMENT: Final = json.dumps(
    [{"name": f"n{number}", "values": [number, str(number), None, True]} for number in range(300)]
)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Without a tracer: measuring coverage makes every line cost several times as much."""
    tracing = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracing)


def slowness() -> float:
    """How many times slower this processor is now than the idle one; at least 1."""
    with untraced():
        return max(1.0, _cpu(_control) / _CONTROL_S)


def least_cpu(step: Callable[[], object], below: float = PAUSE_S, times: int = 25) -> float:
    """The CPU time of the fastest of several runs, converted to an idle processor. One run below the limit is enough."""
    minimum = float("inf")
    with untraced():
        for _ in range(times):
            before = slowness()
            took = _cpu(step)
            minimum = min(minimum, took / max(before, slowness()))
            if minimum < below:
                break
    return minimum


def _cpu(step: Callable[[], object]) -> float:
    began = time.thread_time()
    step()
    return time.thread_time() - began


def _control() -> int:
    total = 0
    for _ in range(5):
        for entry in json.loads(_DOCUMENT):
            total += len(entry["name"]) + sum(1 for value in entry["values"] if value is not None)
    return total
