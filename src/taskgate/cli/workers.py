"""`taskgate serve --workers N`: one process that listens, and N gateways that take connections from its socket.

For more cores on one machine. The workers are ordinary gateways that share a PostgreSQL store, as those on several machines do. A
worker that dies is started again, while connections that nobody has taken yet wait in the common socket for the others. SIGTERM
and SIGINT drain all of them, SIGHUP is passed on, and workers whose parent is gone drain and end by themselves. A connection
may reach any worker, so each has an internal address of its own, by which the others find the sessions that it holds.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import typer

from taskgate import clock
from taskgate.assembly.shared_store import shared_url
from taskgate.cli.run_gateway import LOOPBACK
from taskgate.cli.say import ExitCode
from taskgate.config.load import LoadedConfig
from taskgate.lifecycle import bind
from taskgate.telemetry import logs

MOST_WORKERS: Final = 64
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
STEADY_AFTER_S: Final = 10.0
_NEEDS_DATABASE: Final = (
    "--workers needs a store that several processes can share: set store.url to postgresql://... "
    "With a SQLite store one process serves alone; leave out --workers."
)


class Inherited(NamedTuple):
    """What a worker gets from its parent: the socket that callers come to, a pipe that ends with the parent, one to say that
    it is ready, and where the other workers reach it."""

    listening: int
    parent: int
    ready: int
    internal: str

    @classmethod
    def read(cls, text: str) -> Inherited:
        listening, parent, ready, internal = text.split(",", 3)
        return cls(int(listening), int(parent), int(ready), internal)

    def __str__(self) -> str:
        return ",".join(map(str, self))


class Workers:
    def __init__(
        self, loaded: LoadedConfig, listening: socket.socket, count: int, announce: Callable[[], None], sockets: str
    ) -> None:
        """`sockets`: a folder for internal addresses, where the configuration names none."""
        self._loaded = loaded
        self._sockets = sockets
        self._listening = listening
        self._count = count
        self._announce = announce
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._parent, self._parent_held = os.pipe()
        self._ready, self._ready_said = os.pipe()
        self._code = int(ExitCode.OK)

    async def run(self) -> int:
        """Until told to stop; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        loop.add_reader(self._ready, self._is_ready)
        await asyncio.gather(*(self._keep(place) for place in range(self._count)))
        loop.remove_reader(self._ready)
        return self._code

    def _is_ready(self) -> None:
        os.read(self._ready, 64)
        asyncio.get_running_loop().remove_reader(self._ready)
        self._announce()

    def _stop(self) -> None:
        """Asked a second time, the workers are told a second time, and hurry."""
        self._stopping.set()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        for worker in self._running.values():
            if worker.returncode is None:
                worker.send_signal(number)

    async def _keep(self, place: int) -> None:
        """One worker, started again whenever it ends unasked."""
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = clock.monotonic()
            worker = self._running[place] = await self._started(place)
            if self._stopping.is_set():
                worker.send_signal(signal.SIGTERM)
            code = await worker.wait()
            if self._stopping.is_set():
                return
            if code == ExitCode.USAGE:
                # It cannot be used like this, and said why; neither can the next one.
                self._code = code
                self._stop()
                return
            logs.log.error("a worker ended and is started again", worker=place, pid=worker.pid, code=code)
            pause = FIRST_PAUSE_S if clock.monotonic() - began > STEADY_AFTER_S else min(2 * pause, LONGEST_PAUSE_S)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _started(self, place: int) -> asyncio.subprocess.Process:
        internal = internal_of(place, self._loaded.root.listen.internal, self._sockets)
        given = Inherited(self._listening.fileno(), self._parent, self._ready_said, internal)
        words = [sys.executable, "-m", "taskgate", "serve", "--inherited", str(given)]
        if self._loaded.path is not None:
            words += ["-c", str(self._loaded.path)]
        words += ["--host", self._listening.getsockname()[0]]
        return await asyncio.create_subprocess_exec(*words, pass_fds=given[:3], start_new_session=True)


def internal_of(place: int, configured: str | None, sockets: str) -> str:
    """Where the other workers, and gateways on other machines, reach this one: no two may have the same address.

    Workers take the ports from the configured one on, or a socket each.
    """
    if configured is None:
        return str(Path(sockets) / f"{place}.sock")
    if configured.startswith("/"):
        return configured if configured.endswith("/") else f"{configured}.{place}"
    host, _, port = configured.rpartition(":")
    return configured if port == "0" else f"{host}:{int(port) + place}"


def run_workers(
    loaded: LoadedConfig,
    host: str | None,
    port: int | None,
    count: int,
    announce: Callable[[LoadedConfig, str, int], None],
) -> None:
    """`taskgate serve --workers N`, until it is told to stop. Leaves with the exit code."""
    if shared_url(loaded) is None:
        typer.echo(_NEEDS_DATABASE, err=True)
        raise typer.Exit(ExitCode.USAGE)
    logs.set_up(loaded.root.telemetry.log_level, loaded.root.telemetry.log_format)
    address, number = host or loaded.root.listen.host or LOOPBACK, loaded.root.listen.port if port is None else port
    try:
        listening = bind(address, number)
        listening.listen(4096)
    except OSError as problem:
        typer.echo(f"Cannot listen on {address}:{number}: {problem.strerror}. Try --port 0 for a free port.", err=True)
        raise typer.Exit(ExitCode.CANNOT_CONNECT) from None

    sockets = tempfile.mkdtemp(prefix="taskgate-workers-")

    async def run() -> int:
        found = listening.getsockname()[1]
        return await Workers(loaded, listening, count, lambda: announce(loaded, address, found), sockets).run()

    try:
        code = asyncio.run(run())
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    if code:
        raise typer.Exit(code)
