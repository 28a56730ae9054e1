"""Count the user instructions of another process, where this machine can: by the kernel's counter, or with callgrind.

The kernel's counter (`perf stat`) is exact and costs nothing, but virtual machines often lack it. Callgrind counts on
every Linux machine that has valgrind: the program is started by it and runs some fifty times slower while it counts, so
fewer calls are made.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

COUNTER = "instructions:u"
START_S = 0.3
"""How long perf takes to attach."""


def kernel_counts() -> bool:
    """Whether perf is installed and the kernel offers the counter."""
    if shutil.which("perf") is None:
        return False
    asked = subprocess.run(["perf", "stat", "-x,", "-e", COUNTER, "true"], capture_output=True, text=True, check=False)
    return _counted(asked.stderr) is not None


def callgrind_counts() -> bool:
    return shutil.which("valgrind") is not None and shutil.which("callgrind_control") is not None


class Count:
    """The result of a count; None until it ended."""

    instructions: int | None = None


@asynccontextmanager
async def counted(pid: int, *, callgrind: bool) -> AsyncIterator[Count]:
    """Count the user instructions that the process executes in this block."""
    async with _by_callgrind(pid) if callgrind else _by_kernel(pid) as count:
        yield count


@asynccontextmanager
async def _by_kernel(pid: int) -> AsyncIterator[Count]:
    perf = await asyncio.create_subprocess_exec(
        "perf", "stat", "-x,", "-e", COUNTER, "-p", str(pid), stderr=asyncio.subprocess.PIPE
    )
    await asyncio.sleep(START_S)
    count = Count()
    try:
        yield count
    finally:
        perf.send_signal(signal.SIGINT)
        _, printed = await perf.communicate()
        count.instructions = _counted(printed.decode())


def _counted(printed: str) -> int | None:
    """The value in perf's comma-separated output, if the counter is supported."""
    for line in printed.splitlines():
        value, _, _ = line.partition(",")
        if COUNTER in line and value.isdigit():
            return int(value)
    return None


@asynccontextmanager
async def _by_callgrind(pid: int) -> AsyncIterator[Count]:
    await _control("--zero", pid)
    await _control("--instr=on", pid)
    count = Count()
    try:
        yield count
    finally:
        await _control("--instr=off", pid)
        await _control("--dump", pid)
        count.instructions = _dumped(pid)


async def _control(action: str, pid: int) -> None:
    quiet = subprocess.DEVNULL
    done = await asyncio.create_subprocess_exec("callgrind_control", action, str(pid), stdout=quiet, stderr=quiet)
    await done.wait()


def _folder() -> Path:
    return Path(tempfile.gettempdir())


def _dumped(pid: int) -> int | None:
    """The total of the newest dump of a process."""
    dumps = sorted(_folder().glob(f"callgrind-{pid}.out*"), key=lambda path: path.stat().st_mtime_ns)
    totals = [line for line in dumps[-1].read_text().splitlines() if line.startswith(("summary:", "totals:"))]
    for dump in dumps:
        dump.unlink()
    return int(totals[-1].split()[1]) if totals else None


def run_under_callgrind(arguments: list[str]) -> None:
    """Replace this process by Python with these arguments, run by callgrind, which does not count yet."""
    out = f"--callgrind-out-file={_folder() / 'callgrind-%p.out'}"
    os.execvp(
        "valgrind", ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet", out, sys.executable, *arguments]
    )


if __name__ == "__main__":
    run_under_callgrind(sys.argv[1:])
