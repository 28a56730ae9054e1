"""Report changes of files in folders, as an asynchronous iterator over a thread that waits for the operating system.

`watchfiles.awatch` does the same on anyio, whose import takes a twentieth of the gateway's start.
"""

from __future__ import annotations

import asyncio
import os
import platform
import threading
from collections.abc import AsyncGenerator, Collection
from contextlib import suppress

from taskgate.bare_packages import bare_package

DEBOUNCE_MS = 200
STEP_MS = 50
TIMEOUT_MS = 5_000
"""How long one wait in the thread takes at most. A stop is noticed within a step."""


async def changed_files(folders: Collection[str], stop: asyncio.Event) -> AsyncGenerator[frozenset[str], None]:
    """Yield the paths that changed in these folders, without subfolders, until `stop` is set.

    Changes are noticed from the first `anext` on, before it gives control to the event loop.
    """
    bare_package("watchfiles")
    from watchfiles._rust_notify import RustNotify

    loop, ended = asyncio.get_running_loop(), threading.Event()
    arrived: asyncio.Queue[frozenset[str] | None] = asyncio.Queue()
    watcher = RustNotify(sorted(folders), False, _must_poll(), 300, False, False)

    def report(paths: frozenset[str] | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(arrived.put_nowait, paths)

    def wait() -> None:
        try:
            while not ended.is_set():
                found = watcher.watch(DEBOUNCE_MS, STEP_MS, TIMEOUT_MS, ended)
                if isinstance(found, set):
                    report(frozenset(path for _, path in found))
        finally:
            watcher.close()
            report(None)

    threading.Thread(target=wait, name="file watcher", daemon=True).start()
    stopping = asyncio.create_task(_report_stop(stop, arrived))
    try:
        while (paths := await arrived.get()) is not None:
            yield paths
    finally:
        ended.set()
        stopping.cancel()


async def _report_stop(stop: asyncio.Event, arrived: asyncio.Queue[frozenset[str] | None]) -> None:
    await stop.wait()
    arrived.put_nowait(None)


def _must_poll() -> bool:
    """Whether the file system sends no notifications: in the Windows Subsystem for Linux, and where the user states it."""
    stated = os.environ.get("WATCHFILES_FORCE_POLLING", "")
    return stated.lower() not in ("false", "disable", "disabled") if stated else "microsoft" in platform.release()
