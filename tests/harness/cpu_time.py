"""How long a synchronous step keeps a processor busy: what an event loop would stand still for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PAUSE_S = 0.05
"""The longest that anything a peer sends may hold up everybody else."""


def least_cpu(step: Callable[[], object], times: int = 3) -> float:
    """The processor time of the quickest of several runs: on a busy machine the others pay for their neighbours."""
    return min(_cpu(step) for _ in range(times))


def _cpu(step: Callable[[], object]) -> float:
    """Without whoever traces this run: measuring coverage makes every line cost several times as much."""
    tracing = sys.gettrace()
    sys.settrace(None)
    try:
        began = time.thread_time()
        step()
        return time.thread_time() - began
    finally:
        sys.settrace(tracing)
