"""`python -m tests.pause.watched serve ...`: the gateway, with a note of every step of its event loop that took long.

It runs on the event loop of the standard library, whose steps can be measured one by one; what a step computes is the same there.
A note is a line of JSON in the file that `TASKGATE_SLOW_STEPS` names: milliseconds of processor time of the loop's thread, as a
quiet processor would take them, and which callback it was.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import pstats
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop
from tests.harness.cpu_time import slowness

NOTED_S = 0.010
_usual: Any = asyncio.Handle._run


def watch(notes: Path) -> None:
    def measured(handle: Any) -> None:
        began = time.thread_time()
        _usual(handle)
        took = time.thread_time() - began
        if took > NOTED_S:
            with notes.open("a") as file:
                file.write(json.dumps({"ms": took / slowness() * 1000, "step": repr(handle)}) + "\n")

    def profiled(handle: Any) -> None:
        """For finding the cause (`TASKGATE_PROFILE=1`); it makes every step slower."""
        profile = cProfile.Profile(time.thread_time)
        began = time.thread_time()
        profile.runcall(_usual, handle)
        took = time.thread_time() - began
        if took > NOTED_S:
            with notes.open("a") as file:
                print(f"{took * 1000:.1f} ms {handle!r}", file=file)
                pstats.Stats(profile, stream=file).sort_stats("cumulative").print_stats(25)

    asyncio.Handle._run = profiled if os.environ.get("TASKGATE_PROFILE") else measured  # type: ignore[assignment]


def main() -> None:
    def run(work: Coroutine[Any, Any, Any]) -> Any:
        watch(Path(os.environ["TASKGATE_SLOW_STEPS"]))
        return asyncio.run(work)

    uvloop.run = run  # type: ignore[assignment]
    from taskgate.__main__ import main as gateway  # type: ignore[attr-defined]

    gateway()


if __name__ == "__main__":
    sys.exit(main())
