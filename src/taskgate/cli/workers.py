"""`taskgate serve --workers N`: several gateway processes that accept connections from one socket.

For more cores on one machine. Workers are ordinary gateways that share a PostgreSQL store, as gateways on several machines
do. A worker that dies is restarted, while new connections wait in the shared socket for the others. SIGTERM and SIGINT drain
all workers, SIGHUP is forwarded, and workers whose parent is gone drain and exit. A connection may reach any worker, so each
has an internal address, by which the others reach the sessions it holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from taskgate import clock
from taskgate.assembly.open_app import open_app
from taskgate.assembly.shared_store import Start, Succession, shared_url
from taskgate.cli.command_line import Exit, echo
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.listen_errors import listen_error
from taskgate.cli.run_gateway import LOOPBACK
from taskgate.cli.start_conditions import (
    allow_many_open_files,
    claim_local_address,
    exit_soon,
    print_and_exit,
    run_or_exit,
    set_up_logs,
    state_folder_errors,
)
from taskgate.config.load import LoadedConfig
from taskgate.lifecycle.lifecycle import Lifecycle
from taskgate.lifecycle.listening import bind
from taskgate.operating_system import on_signals
from taskgate.own_programs import own_program
from taskgate.telemetry import logs


def run_worker(loaded: LoadedConfig, host: str | None, inherited: Inherited) -> None:
    """Run one worker: a gateway that accepts connections from an inherited socket and exits with its parent."""
    set_up_logs(loaded, loaded.root.telemetry.log_format)
    allow_many_open_files()
    address, listening = host or loaded.root.listen.host, socket.socket(fileno=inherited.listening)
    listen = structs.replace(loaded.root.listen, internal=inherited.internal)
    loaded = structs.replace(loaded, root=structs.replace(loaded.root, listen=listen))

    async def run() -> None:
        with state_folder_errors(loaded):
            open_side = claim_local_address(loaded)
            where = f"{address}:{listening.getsockname()[1]}"
            app = open_app(loaded, start=Start(where, inherited.succession))
        life = Lifecycle(app, address, open_side, Path(inherited.folder), when_lost=exit_soon)

        def parent_is_gone() -> None:
            asyncio.get_running_loop().remove_reader(inherited.parent)
            life.stop()

        def ready(_host: str, _port: int) -> None:
            os.write(inherited.ready, b".")

        asyncio.get_running_loop().add_reader(inherited.parent, parent_is_gone)
        await life.serve(listening, ready)

    run_or_exit(run, "the inherited socket", print_and_exit)


FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
STEADY_AFTER_S: Final = 10.0
_DEPRECATED: Final = (
    "--workers is deprecated and ends with the next release. "
    "Start several gateways on the same PostgreSQL store instead, each with its own port, behind a balancer."
)
_NEEDS_DATABASE: Final = (
    "--workers needs a PostgreSQL store: set store.url to postgresql://USER@HOST/DATABASE. "
    "With a SQLite store, run one process: remove --workers."
)


class Inherited(NamedTuple):
    """What a worker inherits from its parent.

    The listening socket; a pipe that closes with the parent; a pipe to report readiness; its name and that of the worker it
    replaces; its internal address; the folder that all workers share.
    """

    listening: int
    parent: int
    ready: int
    succession: Succession
    internal: str
    folder: str

    @classmethod
    def read(cls, text: str) -> Inherited:
        listening, parent, ready, succession, internal, folder = json.loads(text)
        return cls(
            listening=listening,
            parent=parent,
            ready=ready,
            succession=Succession(*succession),
            internal=internal,
            folder=folder,
        )

    def __str__(self) -> str:
        return json.dumps(self)


class Workers:
    def __init__(
        self, loaded: LoadedConfig, listening: socket.socket, count: int, announce: Callable[[], None], sockets: str
    ) -> None:
        """`sockets`: a private folder for connections that workers pass to each other, and for internal addresses if the
        configuration sets none."""
        self._loaded = loaded
        self._sockets = sockets
        self._listening = listening
        self._count = count
        self._announce = announce
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._parent, self._parent_held = os.pipe()
        self._ready, self._ready_reported = os.pipe()
        self._code = int(ExitCode.OK)

    async def run(self) -> int:
        """Run until stopped, and return the exit code."""
        loop = asyncio.get_running_loop()
        reload = partial(self._pass_on, signal.SIGHUP)
        on_signals(loop, {"SIGTERM": self._stop, "SIGINT": self._stop, "SIGHUP": reload})
        loop.add_reader(self._ready, self._is_ready)
        await asyncio.gather(*(self._keep(place) for place in range(self._count)))
        loop.remove_reader(self._ready)
        return self._code

    def _is_ready(self) -> None:
        os.read(self._ready, 64)
        asyncio.get_running_loop().remove_reader(self._ready)
        self._announce()

    def _stop(self) -> None:
        """Stop all workers; a second call makes them exit without draining."""
        self._stopping.set()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        for worker in self._running.values():
            if worker.returncode is None:
                worker.send_signal(number)

    async def _keep(self, place: int) -> None:
        """Keep one worker running: restart it when it exits unexpectedly."""
        pause, succession = FIRST_PAUSE_S, Succession("", "").next()
        while not self._stopping.is_set():
            began = clock.monotonic()
            worker = self._running[place] = await self._started(place, succession)
            if self._stopping.is_set():
                worker.send_signal(signal.SIGTERM)
            code = await worker.wait()
            if self._stopping.is_set():
                return
            if code == ExitCode.USAGE:
                # The worker printed a configuration error; a restart would fail the same way.
                self._code = code
                self._stop()
                return
            logs.log.error("worker exited, restarting", worker=place, pid=worker.pid, code=code)
            succession = succession.next()
            pause = FIRST_PAUSE_S if clock.monotonic() - began > STEADY_AFTER_S else min(2 * pause, LONGEST_PAUSE_S)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _started(self, place: int, succession: Succession) -> asyncio.subprocess.Process:
        internal = internal_of(place, self._loaded.root.listen.internal, self._sockets)
        given = Inherited(
            listening=self._listening.fileno(),
            parent=self._parent,
            ready=self._ready_reported,
            succession=succession,
            internal=internal,
            folder=self._sockets,
        )
        command = [*own_program(), "serve", "--inherited", str(given)]
        if self._loaded.path is not None:
            command += ["-c", str(self._loaded.path)]
        command += ["--host", self._listening.getsockname()[0]]
        return await asyncio.create_subprocess_exec(*command, pass_fds=given[:3], start_new_session=True)


def internal_of(place: int, configured: str | None, sockets: str) -> str:
    """Return the internal address of a worker, which must be unique.

    Workers use consecutive ports, starting with the configured one, or a socket each.
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
    """Run `taskgate serve --workers N` until it is stopped. Raises Exit with the exit code."""
    echo(_DEPRECATED, err=True)
    if shared_url(loaded) is None:
        echo(_NEEDS_DATABASE, err=True)
        raise Exit(ExitCode.USAGE)
    logs.set_up(loaded.root.telemetry.log_level, loaded.root.telemetry.log_format)
    address, number = host or loaded.root.listen.host or LOOPBACK, loaded.root.listen.port if port is None else port
    try:
        listening = bind(address, number)
        listening.listen(4096)
    except OSError as problem:
        echo(listen_error(f"{address}:{number}", problem), err=True)
        raise Exit(ExitCode.CANNOT_CONNECT) from None

    sockets = tempfile.mkdtemp(prefix="taskgate-workers-")

    async def run() -> int:
        found = listening.getsockname()[1]
        return await Workers(loaded, listening, count, lambda: announce(loaded, address, found), sockets).run()

    try:
        code = asyncio.run(run())
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    if code:
        raise Exit(code)
