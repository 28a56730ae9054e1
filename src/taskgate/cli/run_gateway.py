"""Run a gateway in this process: for `taskgate serve`, on demand for a bridge, or on standard streams.

An error before the first caller can connect is printed as one sentence with the next step, and sets the exit code.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from taskgate import clock
from taskgate.assembly.app import App
from taskgate.assembly.open_app import open_app, open_stdio_app
from taskgate.assembly.shared_store import Start
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.start_conditions import (
    allow_many_open_files,
    claim_local_address,
    exit_soon,
    print_and_exit,
    run_or_exit,
    set_up_logs,
    state_folder_errors,
    wait_for_disk_space,
)
from taskgate.config.load import LoadedConfig, load_for_client
from taskgate.config.problems import ConfigError
from taskgate.core.errors import GatewayFault
from taskgate.inbound.local_address import ON_DEMAND, AddressTaken, claim
from taskgate.lifecycle.lifecycle import Lifecycle
from taskgate.local_gateway import LocalGateway, OwnStreams, files_of, report_to_starter
from taskgate.store.sqlite.file_lock import StoreInUse
from taskgate.telemetry import logs

LOOPBACK = "127.0.0.1"
RELEASE_S = 5.0
Announce = Callable[[LoadedConfig, str, int, Callable[[], str]], None]


def run_gateway(loaded: LoadedConfig, host: str | None, port: int | None, announce: Announce) -> None:
    """Run `taskgate serve` until it is stopped."""
    set_up_logs(loaded, loaded.root.telemetry.log_format)
    allow_many_open_files()
    address = host or loaded.root.listen.host
    number = loaded.root.listen.port if port is None else port

    async def run() -> None:
        await wait_for_disk_space(loaded)
        with state_folder_errors(loaded):
            # Claim the address first: an on-demand gateway that yields to us keeps the store open until it exits.
            open_side = claim_local_address(loaded)
            app = open_app(loaded, start=Start(f"{address}:{number}"))
        life = Lifecycle(app, address, open_side, when_lost=exit_soon)
        await life.serve(number, lambda h, p: announce(loaded, h, p, life.login_url))

    run_or_exit(run, f"{address}:{number}", print_and_exit)


def run_on_demand(config: str | None, *, is_found: bool) -> None:
    """Run the gateway that a bridge starts: on loopback, on the configured port or, if that is in use, on a free one.

    The bridge has found the file, so none is searched for here. `is_found`: only the working folder led to it.
    """
    try:
        loaded = load_for_client(config, is_found=is_found)
    except ConfigError as error:
        _report_and_exit(str(error), ExitCode.USAGE)
    set_up_logs(loaded, "json")
    allow_many_open_files()
    try:
        with state_folder_errors(loaded):
            address = claim(files_of(loaded), ON_DEMAND)
    except AddressTaken:
        report_to_starter("ready")
        return
    except GatewayFault as problem:
        _report_and_exit(logs.log.without_secrets(problem.message), ExitCode.USAGE)

    async def run() -> None:
        with state_folder_errors(loaded):
            app = await _open_when_released(loaded)
        life = Lifecycle(app, LOOPBACK, partial(LocalGateway, address), when_lost=exit_soon)
        await life.serve(_port_or_free(loaded.root.listen.port), lambda _host, _port: report_to_starter("ready"))

    run_or_exit(run, LOOPBACK, _report_and_exit)


async def _open_when_released(loaded: LoadedConfig) -> App:
    """Open the store. An earlier gateway whose files were removed may hold it for a moment, until it has noticed that."""
    until = clock.monotonic() + RELEASE_S
    while True:
        try:
            return open_app(loaded, local=True)
        except StoreInUse:
            if clock.monotonic() >= until:
                raise
        await clock.sleep(0.05)


def run_alone(loaded: LoadedConfig, scope: str | None) -> None:
    """Run `taskgate stdio --alone`."""
    set_up_logs(loaded, loaded.root.telemetry.log_format)

    async def run() -> None:
        with state_folder_errors(loaded):
            app = open_stdio_app(loaded)
        life = Lifecycle(app, LOOPBACK, partial(OwnStreams, scope), when_lost=exit_soon)
        await life.serve(0, _announce_inbox)

    run_or_exit(run, LOOPBACK, print_and_exit)


def _announce_inbox(host: str, port: int) -> None:
    """Print to stderr, because stdout carries MCP messages."""
    url = f"http://{host}:{port}"
    print(f"Approvals and questions: {url} (taskgate approvals list --gateway {url})", file=sys.stderr, flush=True)


def _report_and_exit(why: str, code: ExitCode) -> NoReturn:
    """Report the error to the bridge that started this process, and log it."""
    report_to_starter(f"failed {int(code)} {why}")
    print_and_exit(why, code)


def _port_or_free(port: int) -> int:
    """Return the configured port, or 0 if it is in use. Bridges do not use it, and commands read it from the record."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return 0
    return port
