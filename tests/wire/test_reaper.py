"""No child process outlives the gateway, regardless of how the gateway ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskgate.mcp.stdio import Child, ChildSpec, Reaper

# Starts a child that starts a helper; both ignore SIGTERM. Prints their pids and the watcher's, then waits to be killed.
DRIVER = """
import asyncio, sys
from taskgate.mcp.stdio import Child, ChildSpec, Reaper

SERVER = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
helper = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
print(helper.pid, flush=True)
time.sleep(600)
'''

async def main():
    reaper = Reaper()
    said = asyncio.get_running_loop().create_future()
    child = await Child.start(
        ChildSpec(sys.executable, ("-I", "-S", "-c", SERVER)),
        on_line=said.set_result, on_exit=print, on_oversize=print, reaper=reaper,
    )
    print(child.pid, int(await said), reaper.watcher_pid, flush=True)
    await asyncio.sleep(600)

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def wait_exit(pids: list[int], within_s: float) -> list[int]:
    end = time.monotonic() + within_s
    left = pids
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = [pid for pid in left if alive(pid)]
    return left


def ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) & 1 << (number - 1))


def start_driver(loop: str) -> tuple[subprocess.Popen[str], list[int]]:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, loop], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids = [int(word) for word in driver.stdout.readline().split()]
    assert len(pids) == 3
    return driver, pids


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_killed_gateway(loop: str, number: signal.Signals) -> None:
    driver, pids = start_driver(loop)
    with driver:
        assert all(alive(pid) for pid in pids)
        driver.send_signal(number)
        driver.wait(60)
        assert wait_exit(pids, 60) == []


def test_watcher_kills_children_without_kernel_support() -> None:
    """The helper has no tie to the gateway but the watcher, and the watcher ignores signals for the gateway."""
    driver, pids = start_driver("asyncio")
    with driver:
        while not ignores(pids[2], signal.SIGQUIT):  # the last of the signals that it learns to ignore
            time.sleep(0.01)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pids[2], number)
        driver.kill()
        driver.wait(60)
        assert wait_exit(pids, 60) == []


async def start_sleeper(reaper: Reaper) -> Child:
    return await Child.start(
        ChildSpec(sys.executable, ("-I", "-S", "-c", "import time; time.sleep(600)")),
        on_line=lambda line: None,
        on_exit=lambda ended: None,
        on_oversize=lambda size: None,
        reaper=reaper,
    )


async def test_crashed_watcher_is_replaced_and_receives_groups() -> None:
    reaper = Reaper()
    first = await start_sleeper(reaper)
    lost = reaper.watcher_pid
    assert lost is not None
    os.kill(lost, signal.SIGKILL)
    while alive(lost):
        await asyncio.sleep(0.01)
    second = await start_sleeper(reaper)
    assert reaper.watcher_pid != lost
    await reaper.close()
    for child in (first, second):
        assert await child.wait_exit(5) is not None


async def test_closing_reaper_ends_watcher_without_zombie() -> None:
    reaper = Reaper()
    child = await start_sleeper(reaper)
    watcher = reaper.watcher_pid
    assert watcher is not None
    await child.stop(0.05)
    await reaper.close()
    with pytest.raises(ProcessLookupError):
        os.kill(watcher, 0)
    await reaper.close()


async def test_reaper_without_children_starts_no_watcher() -> None:
    reaper = Reaper()
    reaper.remove(12345)
    assert reaper.watcher_pid is None
    await reaper.close()
