"""Starts a program in its own process group, waits until it is ready, and ends the group again.

Standard error is kept in a file, so that a failing test can show its output. Used for peer servers, for
the gateway and by the benchmark; one-shot clients use `run_to_end`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

# These only end a hang: on an overloaded machine everything may take ten times as long.
START_DEADLINE = 150.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
END_DEADLINE = 60.0


class NotReady(Exception):
    """The program ended, or did not become reachable in time; the text holds what it wrote."""


LOWEST_PORT, PORTS_OF_A_WORKER, WORKERS = 10_000, 2_500, 8
"""Below those that the system gives to outgoing connections: one of these could take a port before the program that it is for."""
_next_port = itertools.count(os.getpid() * 101)


def free_port() -> int:
    """A port that no other worker is given, and this one not soon again."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    for number in itertools.islice(_next_port, PORTS_OF_A_WORKER):
        port = LOWEST_PORT + worker * PORTS_OF_A_WORKER + number % PORTS_OF_A_WORKER
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise NotReady("every port of this worker is taken")


@dataclass(slots=True)
class Program:
    """A running child process and the file its standard error goes to."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def output(self, last: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-last:]

    async def end(self, sign: signal.Signals = signal.SIGTERM, within: float = END_DEADLINE) -> int:
        """Terminate the process, and kill its whole group if it does not end."""
        if self.alive:
            self.process.send_signal(sign)
        try:
            code = await asyncio.wait_for(self.process.wait(), within)
        except TimeoutError:
            self.end_group(signal.SIGKILL)
            code = await self.process.wait()
        self.end_group(signal.SIGKILL)
        return code

    def end_group(self, sign: signal.Signals) -> None:
        try:
            os.killpg(self.pid, sign)
        except ProcessLookupError:
            return


def die_with_parent() -> None:
    """Run in the child before its program: a test run that is killed must not leave programs behind (Linux only)."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


async def start(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, log: Path | None = None
) -> Program:
    path = log or Path(tempfile.mkstemp(prefix="program-", suffix=".log")[1])
    with path.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    return Program(process, path)


@asynccontextmanager
async def running(
    command: Sequence[str | Path],
    ready: Callable[[], Awaitable[bool]],
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> AsyncIterator[Program]:
    """The program, from the moment `ready` returns True until the block ends."""
    program = await start(command, env, log)
    try:
        await until_ready(program, ready)
        yield program
    finally:
        await program.end()


async def until_ready(program: Program, ready: Callable[[], Awaitable[bool]], within: float = START_DEADLINE) -> None:
    deadline = time.monotonic() + within
    while not await ready():
        if not program.alive:
            raise NotReady(f"the program ended with code {program.process.returncode}:\n{program.output()}")
        if time.monotonic() > deadline:
            raise NotReady(f"not reachable within {within} s:\n{program.output()}")
        await asyncio.sleep(0.02)


def listening(port: int) -> Callable[[], Awaitable[bool]]:
    async def connects() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    return connects


async def run_to_end(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, within: float = 240.0
) -> tuple[int, str, str]:
    """Run a one-shot program and return its exit code and what it wrote to both outputs."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), within)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = await process.communicate()
        return -1, out.decode(errors="replace"), err.decode(errors="replace") + f"\nended after {within} s"
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
