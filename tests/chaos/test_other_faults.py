"""Other faults under load: the upstream or a child is killed, the gateway is stopped, its configuration is reloaded, the
disk is full at a restart, a backup is restored.

The same callers and the same checker as for random kills. The short runs are part of `make test-programs`, the long
ones of `make chaos`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.checker import TWICE, complaints
from tests.chaos.crash_setup import CLASSES, DISK_FULL, HERE, Setup, configuration, running_setup, upstream_command
from tests.chaos.load import Load
from tests.harness.programs import listening, start, until_ready

NO_ROOM = "No space left"
CHILD = "ledger_child.py"
Happening = Callable[[Setup, int], Awaitable[None]]


async def upstream_killed(setup: Setup, _number: int) -> None:
    """Killed without a shutdown; its memory, including its tasks, is lost."""
    setup.upstream.process.kill()
    await setup.upstream.process.wait()
    generation = "2026" if "2026" in str(setup.gateway.folder.name) else "2025"
    setup.upstream = await start(upstream_command(setup.port, setup.ledger, generation))
    await until_ready(setup.upstream, listening(setup.port))


async def stopped_and_started(setup: Setup, _number: int) -> None:
    """As a service manager does it: SIGTERM, then a new process."""
    assert setup.gateway.program is not None
    assert await setup.gateway.program.end(signal.SIGTERM, within=60) == 0
    await setup.gateway.start_again()


async def disk_full_at_restart(setup: Setup, _number: int) -> None:
    """Killed, and the disk is full when it starts again: it logs that, waits, and continues by itself when there is space."""
    gateway = setup.gateway
    await gateway.kill()
    before, seen = gateway.program, gateway.log.count(NO_ROOM)
    coming = asyncio.create_task(gateway.start_again(DISK_FULL))
    async with asyncio.timeout(60):
        while (gateway.program is before or gateway.log.count(NO_ROOM) <= seen) and not coming.done():
            await asyncio.sleep(0.05)
    assert not coming.done()
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await coming


async def reloaded(setup: Setup, number: int) -> None:
    """A file that differs in something harmless."""
    await setup.gateway.reload(configuration(setup.port, poll_interval_ms=100 + number % 2))


async def faults_repeatedly(folder: Path, what: Happening, *, times: int, callers: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    generation = "2026" if "2026" in folder.name else "2025"
    async with running_setup(folder, None, generation, with_child(folder) if what is child_killed else None) as setup:
        load, at = Load(setup.gateway, seed), list[float]()
        busy = asyncio.create_task(load.run(callers))
        for number in range(times):
            await asyncio.sleep(chance.uniform(0.2, 1.2))
            at.append(time.time())
            await what(setup, number)
            at.append(time.time())
        load.stop()
        await asyncio.wait_for(busy, 120)
        await load.settle(120)
        settled = [call for call in load.reports if call.task_id is not None]
        reported = sum(1 for call in settled if call.unknown)
        print(f"{what.__name__} {times} times, {len(settled)} acknowledged tasks, {reported} unknown")
        assert len(settled) > times
        found = complaints(load.reports, setup.ledger.executions(), [] if what is reloaded else at)
        # Restoring a backup loses later data, but a call that may run only once must not run twice.
        return [each for each in found if TWICE in each] if what is backup_restored else found


async def child_killed(setup: Setup, _number: int) -> None:
    """The server's process, which the gateway started and starts again."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = process.read_bytes()
            if CHILD.encode() in command and os.fsencode(setup.ledger.path) in command:
                os.kill(int(process.parent.name), signal.SIGKILL)


def with_child(folder: Path) -> dict[str, Any]:
    command = {"command": sys.executable, "args": [str(HERE / CHILD), str(folder / "ledger.jsonl")]}
    return {"servers": {"books": {**command, "tools": CLASSES}}}


async def backup_restored(setup: Setup, number: int) -> None:
    """Killed, and every second time it comes back on the files of the time before. What was accepted since is not in them."""
    gateway, kept = setup.gateway, setup.gateway.folder / "backup"
    await gateway.kill()
    files = [path for path in gateway.state.iterdir() if ".db" in path.name and path.suffix not in (".known", ".lock")]
    if number % 2:
        for path in files:
            path.unlink()
        shutil.copytree(kept, gateway.state, dirs_exist_ok=True)
        shutil.rmtree(kept)
    else:
        kept.mkdir()
        for path in files:
            shutil.copy2(path, kept / path.name)
    await gateway.start_again()


WHAT = [child_killed, backup_restored, upstream_killed, stopped_and_started, reloaded, disk_full_at_restart]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", WHAT)
async def test_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path, what: Happening) -> None:
    folder = tmp_path / "2025"
    folder.mkdir()
    assert await faults_repeatedly(folder, what, times=2, callers=6, seed=3) == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("what", WHAT)
async def test_nothing_is_lost_or_run_twice_in_twenty_runs(tmp_path: Path, what: Happening, generation: str) -> None:
    folder = tmp_path / generation
    folder.mkdir()
    assert await faults_repeatedly(folder, what, times=20, callers=16, seed=11) == []
