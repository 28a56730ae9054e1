"""Running a gateway in this process: as a person starts it, as a bridge does, and on standard streams alone.

Whatever goes wrong before callers can come is one sentence that says what to do, with its exit code; never a traceback.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import typer

from taskgate import clock
from taskgate.assembly.build import open_house, open_stdio_house
from taskgate.assembly.shared_store import Start, Succession, shared_url
from taskgate.cli.say import ExitCode
from taskgate.config.load import LoadedConfig, load_or_default
from taskgate.config.problems import ConfigError
from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.inbound.local import ON_DEMAND, SERVE, AddressTaken, claim
from taskgate.lifecycle import Lifecycle, StateLost, bind
from taskgate.local_gateway import LocalGateway, NoSide, OpenSide, OwnStreams, meeting_of, tell_starter
from taskgate.telemetry import logs

LOOPBACK = "127.0.0.1"
MANY_FILES = 65_536
ROOM_BYTES = 4 << 20
LOOK_EVERY_S, TELL_EVERY_S = 1.0, 60.0
END_WITHIN_S = 1.4
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Announce = Callable[[LoadedConfig, str, int, str], None]


def run_gateway(loaded: LoadedConfig, host: str | None, port: int | None, announce: Announce) -> None:
    """`taskgate serve`, until it is told to stop."""
    _log_as(loaded, loaded.root.telemetry.log_format)
    allow_many_open_files()
    address = host or loaded.root.listen.host
    number = loaded.root.listen.port if port is None else port

    async def run() -> None:
        await _room_in(loaded)
        with _using(loaded):
            # The claim comes first: a gateway that makes room for us has the store until it is gone.
            open_side = _claimed(loaded)
            house = open_house(loaded, start=Start(f"{address}:{number}"))
        life = Lifecycle(house, address, open_side, when_lost=_end_soon)
        await life.serve(number, lambda h, p: announce(loaded, h, p, life.login_url()))

    _or_exit(run, f"{address}:{number}", _leave)


def run_worker(loaded: LoadedConfig, host: str | None, inherited: Inherited) -> None:
    """One of several processes that take connections from one socket; it ends when the process that has it ends."""
    _log_as(loaded, loaded.root.telemetry.log_format)
    allow_many_open_files()
    address, listening = host or loaded.root.listen.host, socket.socket(fileno=inherited.listening)
    listen = loaded.root.listen.model_copy(update={"internal": inherited.internal})
    loaded = replace(loaded, root=loaded.root.model_copy(update={"listen": listen}))

    async def run() -> None:
        with _using(loaded):
            open_side = _claimed(loaded)
            where = f"{address}:{listening.getsockname()[1]}"
            house = open_house(loaded, start=Start(where, inherited.succession))
        life = Lifecycle(house, address, open_side, Path(inherited.folder), when_lost=_end_soon)

        def parent_is_gone() -> None:
            asyncio.get_running_loop().remove_reader(inherited.parent)
            life.stop()

        def ready(_host: str, _port: int) -> None:
            os.write(inherited.ready, b".")

        asyncio.get_running_loop().add_reader(inherited.parent, parent_is_gone)
        await life.serve(listening, ready)

    _or_exit(run, "the inherited socket", _leave)


def _log_as(loaded: LoadedConfig, form: str) -> None:
    logs.set_up(loaded.root.telemetry.log_level, form)
    logs.log.hide(loaded.secret_values.text)


def allow_many_open_files() -> None:
    """Every caller and every running call is a connection. Many systems allow a process 1,024 open files unless it asks."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if most == resource.RLIM_INFINITY else min(most, MANY_FILES)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _claimed(loaded: LoadedConfig) -> OpenSide:
    try:
        return partial(LocalGateway, claim(meeting_of(loaded), SERVE))
    except AddressTaken as taken:
        logs.log.warning("clients on standard streams go to another gateway", why=str(taken))
        return NoSide


def run_on_demand(config: str | None) -> None:
    """The gateway that a bridge starts: on loopback, on the configured port or, if that is taken, on any."""
    try:
        loaded = load_or_default(config)
    except ConfigError as error:
        _tell_and_leave(str(error), ExitCode.USAGE)
    _log_as(loaded, "json")
    allow_many_open_files()
    try:
        with _using(loaded):
            address = claim(meeting_of(loaded), ON_DEMAND)
    except AddressTaken:
        tell_starter("ready")
        return
    except GatewayFault as problem:
        _tell_and_leave(logs.log.without_secrets(problem.message), ExitCode.USAGE)

    async def run() -> None:
        with _using(loaded):
            house = open_house(loaded, local=True)
        life = Lifecycle(house, LOOPBACK, partial(LocalGateway, address), when_lost=_end_soon)
        await life.serve(_free(loaded.root.listen.port), lambda _host, _port: tell_starter("ready"))

    _or_exit(run, LOOPBACK, _tell_and_leave)


def run_alone(loaded: LoadedConfig, scope: str | None) -> None:
    """`taskgate stdio --alone`."""
    _log_as(loaded, loaded.root.telemetry.log_format)

    async def run() -> None:
        with _using(loaded):
            house = open_stdio_house(loaded)
        life = Lifecycle(house, LOOPBACK, partial(OwnStreams, scope), when_lost=_end_soon)
        await life.serve(0, _announce_inbox)

    _or_exit(run, LOOPBACK, _leave)


def _announce_inbox(host: str, port: int) -> None:
    """Standard output belongs to the client; this is for the person who reads its log."""
    url = f"http://{host}:{port}"
    typer.echo(f"Approvals and questions: {url} (taskgate approvals list --gateway {url})", err=True)


async def _room_in(loaded: LoadedConfig) -> None:
    """Wait for room on the disk: nothing can be accepted without it, and what was accepted before is there and must not be left
    for another state folder.
    """
    told = 0.0
    while _is_full(loaded):
        if clock.monotonic() >= told:
            told = clock.monotonic() + TELL_EVERY_S
            text = f"{_full(loaded)} The gateway starts as soon as there is some."
            logs.log.error(text)
        await clock.sleep(LOOK_EVERY_S)


def _is_full(loaded: LoadedConfig) -> bool:
    """Whether a file of a few megabytes cannot be made; what else may be wrong with the folder shows when it is used."""
    try:
        with tempfile.TemporaryFile(dir=loaded.state_dir) as probe:
            probe.write(bytes(ROOM_BYTES))
            probe.flush()
    except OSError as problem:
        return problem.errno in FULL
    return False


def _full(loaded: LoadedConfig) -> str:
    room = f"{ROOM_BYTES >> 20} MB"
    return f"The disk of the state folder {loaded.state_dir} has no room left: make room for {room} at least."


@contextmanager
def _using(loaded: LoadedConfig) -> Iterator[None]:
    """Around what needs the state folder and the store."""
    try:
        yield
    except OSError as problem:
        if problem.errno in FULL:
            raise GatewayFault("store_unavailable", f"{_full(loaded)} Then start it again.") from None
        why = problem.strerror or str(problem)
        text = f"The state folder {loaded.state_dir} cannot be used: {why}. Set TASKGATE_STATE_DIR to another one."
        raise GatewayFault("store_unavailable", text) from None


def _end_soon() -> None:
    """End this process even if it hangs while it closes: another gateway may start in its place and must not run beside it."""

    def end() -> None:
        threading.Event().wait(END_WITHIN_S)
        os._exit(ExitCode.FAILED)

    threading.Thread(target=end, name="taskgate-end", daemon=True).start()


def _or_exit(
    run: Callable[[], Coroutine[Any, Any, None]], address: str, leave: Callable[[str, ExitCode], NoReturn]
) -> None:
    """What is said goes through the log's hiding: a store's address or a file's name may hold a secret."""
    import uvloop

    try:
        uvloop.run(run())
    except ConfigError as error:
        leave(logs.log.without_secrets(str(error)), ExitCode.USAGE)
    except StateLost as problem:
        leave(logs.log.without_secrets(problem.message), ExitCode.FAILED)
    except TaskgateError as problem:
        leave(logs.log.without_secrets(problem.message), ExitCode.USAGE)
    except OSError as problem:
        said = logs.log.without_secrets(f"Cannot listen on {address}: {problem.strerror or problem}.")
        leave(f"{said} {_PORT_TAKEN}", ExitCode.CANNOT_CONNECT)


def _leave(why: str, code: ExitCode) -> NoReturn:
    typer.echo(why, err=True)
    raise typer.Exit(code)


def _tell_and_leave(why: str, code: ExitCode) -> NoReturn:
    """The bridge that waits for us is told; the log has it too."""
    tell_starter(f"failed {int(code)} {why}")
    _leave(why, code)


def _free(port: int) -> int:
    """The configured port, or 0 if somebody else has it: bridges need none, and commands read which one it became."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return 0
    return port


# `taskgate serve --workers N`: one process that listens, and N gateways that take connections from its socket.
#
# For more cores on one machine. The workers are ordinary gateways that share a PostgreSQL store, as those on several
# machines do. A worker that dies is started again, while connections that nobody has taken yet wait in the common
# socket for the others. SIGTERM and SIGINT drain all of them, SIGHUP is passed on, and workers whose parent is gone
# drain and end by themselves. A connection may reach any worker, so each has an internal address of its own, by which
# the others find the sessions that it holds.

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
STEADY_AFTER_S: Final = 10.0
_PORT_TAKEN: Final = "`taskgate status` shows the gateways that run; --port 0 takes a free port."
_NEEDS_DATABASE: Final = (
    "--workers needs a store that several processes can share: set store.url to postgresql://... "
    "With a SQLite store one process serves alone; leave out --workers."
)


class Inherited(NamedTuple):
    """What a worker gets from its parent: the socket that accepts callers, a pipe that ends with the parent, one on which it
    reports that it is ready, its name and that of the worker that it replaces, its internal address, and the folder of all."""

    listening: int
    parent: int
    ready: int
    succession: Succession
    internal: str
    folder: str

    @classmethod
    def read(cls, text: str) -> Inherited:
        listening, parent, ready, succession, internal, folder = json.loads(text)
        return cls(listening, parent, ready, Succession(*succession), internal, folder)

    def __str__(self) -> str:
        return json.dumps(self)


class Workers:
    def __init__(
        self, loaded: LoadedConfig, listening: socket.socket, count: int, announce: Callable[[], None], sockets: str
    ) -> None:
        """`sockets`: a private folder of the workers, for the connections that they give each other, and for their internal
        addresses where the configuration names none."""
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
                # It cannot be used like this, and said why; neither can the next one.
                self._code = code
                self._stop()
                return
            logs.log.error("a worker ended and is started again", worker=place, pid=worker.pid, code=code)
            succession = succession.next()
            pause = FIRST_PAUSE_S if clock.monotonic() - began > STEADY_AFTER_S else min(2 * pause, LONGEST_PAUSE_S)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _started(self, place: int, succession: Succession) -> asyncio.subprocess.Process:
        internal = internal_of(place, self._loaded.root.listen.internal, self._sockets)
        given = Inherited(self._listening.fileno(), self._parent, self._ready_said, succession, internal, self._sockets)
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
        typer.echo(f"Cannot listen on {address}:{number}: {problem.strerror}. {_PORT_TAKEN}", err=True)
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
