"""Changes of watched files are reported from the start, and watching ends when it is stopped."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

from taskgate.file_watching import changed_files

DEADLINE_S = 60.0


async def test_changes_after_the_first_step_are_reported(tmp_path: Path) -> None:
    file, stop = tmp_path / "taskgate.yaml", asyncio.Event()
    async with asyncio.timeout(DEADLINE_S), aclosing(changed_files([str(tmp_path)], stop)) as changes:
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        file.write_text("schema: 1")
        assert str(file) in await first
        replacement = tmp_path / "new"
        replacement.write_text("schema: 1 # again")
        os.replace(replacement, file)
        seen: set[str] = set()
        while str(file) not in seen:
            seen |= await anext(changes)


async def test_subfolders_are_not_watched(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with asyncio.timeout(DEADLINE_S), aclosing(changed_files([str(tmp_path)], asyncio.Event())) as changes:
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        (tmp_path / "sub" / "file").write_text("")
        (tmp_path / "file").write_text("")
        reported = set(await first)
        while str(tmp_path / "file") not in reported:
            reported |= await anext(changes)
        assert str(tmp_path / "sub" / "file") not in reported


async def test_stop_ends_the_iteration(tmp_path: Path) -> None:
    stop = asyncio.Event()
    async with asyncio.timeout(DEADLINE_S), aclosing(changed_files([str(tmp_path)], stop)) as changes:
        first = asyncio.ensure_future(anext(changes, None))
        await asyncio.sleep(0)
        stop.set()
        assert await first is None
