"""Report changes of files in folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

DEBOUNCE_MS = 200
STEP_MS = 50


async def changed_files(folders: Collection[str], stop: asyncio.Event) -> AsyncGenerator[frozenset[str], None]:
    """Yield the paths that changed in these folders, without subfolders, until `stop` is set.

    Changes are noticed from the first `anext` on, before it gives control to the event loop.
    """
    # Imported here: only a gateway with a file to watch needs it.
    from watchfiles import awatch

    found = awatch(*folders, watch_filter=None, debounce=DEBOUNCE_MS, step=STEP_MS, stop_event=stop, recursive=False)
    async with aclosing(found) as changes:
        async for changed in changes:
            yield frozenset(path for _, path in changed)
