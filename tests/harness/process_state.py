"""Global state of a process, restored after each test: hundreds of tests share a worker and must not affect each other.

A command line program may change these for the rest of its process (`taskgate scopes` logs errors only); a test that runs it in
its own process must not silence the log of the next test's gateway.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator

from taskgate.core.repeated_lines import RepeatedLines
from taskgate.telemetry.logs import log

# Programs inherit which signals are ignored: a test's program must end on SIGTERM whatever ran before it in the same worker.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    environment, folder = dict(os.environ), os.getcwd()
    level, as_text, handlers = log.minimum, log.as_text, list(logging.root.handlers)
    hidden, log.repeated = log._hiding, RepeatedLines()
    thresholds, interval, tracer = gc.get_threshold(), sys.getswitchinterval(), sys.gettrace()
    on_signals = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
        os.chdir(folder)
        log.minimum, log.as_text, log._hiding = level, as_text, hidden
        logging.root.handlers[:] = handlers
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        for number, handler in on_signals.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
        if sys.gettrace() is not tracer:
            # Without it every later test of this process would be missing from the measured coverage.
            sys.settrace(tracer)
