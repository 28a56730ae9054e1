"""Running a gateway in this process: as a person starts it, as a bridge does, and on standard streams alone.

Whatever goes wrong before callers can come is one sentence that says what to do, with its exit code; never a traceback.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from taskgate import clock
from taskgate.assembly.build import open_house, open_stdio_house
from taskgate.cli.say import ExitCode
from taskgate.config.load import LoadedConfig, load_or_default
from taskgate.config.problems import ConfigError
from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.inbound.local_address import ON_DEMAND, SERVE, AddressTaken, claim
from taskgate.lifecycle import Lifecycle
from taskgate.local_gateway import LocalGateway, NoSide, OpenSide, OwnStreams, meeting_of, tell_starter
from taskgate.telemetry import logs

if TYPE_CHECKING:
    from taskgate.cli.workers import Inherited

LOOPBACK = "127.0.0.1"
MANY_FILES = 65_536
ROOM_BYTES = 4 << 20
LOOK_EVERY_S, TELL_EVERY_S = 1.0, 60.0
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
            house = open_house(loaded)
        life = Lifecycle(house, address, open_side)
        await life.serve(number, lambda h, p: announce(loaded, h, p, life.login_url()))

    _or_exit(run, f"{address}:{number}", _leave)


def run_worker(loaded: LoadedConfig, host: str | None, inherited: Inherited) -> None:
    """One of several processes that take connections from one socket; it ends when the process that has it ends."""
    _log_as(loaded, loaded.root.telemetry.log_format)
    allow_many_open_files()
    listening = socket.socket(fileno=inherited.listening)
    listen = loaded.root.listen.model_copy(update={"internal": inherited.internal})
    loaded = replace(loaded, root=loaded.root.model_copy(update={"listen": listen}))

    async def run() -> None:
        with _using(loaded):
            open_side = _claimed(loaded)
            house = open_house(loaded)
        life = Lifecycle(house, host or loaded.root.listen.host, open_side)

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
        life = Lifecycle(house, LOOPBACK, partial(LocalGateway, address))
        await life.serve(_free(loaded.root.listen.port), lambda _host, _port: tell_starter("ready"))

    _or_exit(run, LOOPBACK, _tell_and_leave)


def run_alone(loaded: LoadedConfig, scope: str | None) -> None:
    """`taskgate stdio --alone`."""
    _log_as(loaded, loaded.root.telemetry.log_format)

    async def run() -> None:
        with _using(loaded):
            house = open_stdio_house(loaded)
        life = Lifecycle(house, LOOPBACK, partial(OwnStreams, scope))
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


def _or_exit(
    run: Callable[[], Coroutine[Any, Any, None]], address: str, leave: Callable[[str, ExitCode], NoReturn]
) -> None:
    """What is said goes through the log's hiding: a store's address or a file's name may hold a secret."""
    import uvloop

    try:
        uvloop.run(run())
    except ConfigError as error:
        leave(logs.log.without_secrets(str(error)), ExitCode.USAGE)
    except TaskgateError as problem:
        leave(logs.log.without_secrets(problem.message), ExitCode.USAGE)
    except OSError as problem:
        said = logs.log.without_secrets(f"Cannot listen on {address}: {problem.strerror or problem}.")
        leave(f"{said} Try --port 0 for a free port.", ExitCode.CANNOT_CONNECT)


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
