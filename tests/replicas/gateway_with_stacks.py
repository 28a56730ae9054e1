"""Runs `taskgate ARGUMENTS...`; on SIGUSR2 it prints what each of its coroutines waits for.

For debugging a task that never ends.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from taskgate.cli.main import main


def frames(coroutine: Any) -> Iterator[FrameType]:
    while hasattr(coroutine, "cr_frame"):
        if coroutine.cr_frame is not None:
            yield coroutine.cr_frame
        coroutine = coroutine.cr_await


def show(*_: object) -> None:
    for task in asyncio.all_tasks():
        words = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in frames(task.get_coro())]
        print("WAITS", *words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, show)
    main()
