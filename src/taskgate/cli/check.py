"""`taskgate check`: validate the configuration without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskgate.cli.announcement import NO_SERVERS
from taskgate.cli.command_line import Commands, Exit, echo
from taskgate.cli.configuration import ConfigOption, skip_reason
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.listen_errors import listen_problem
from taskgate.cli.loading import loaded_or_exit

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig


ALL_SKIPPED = "All configured servers are skipped. Correct what is named above, for example by setting the variables."


def register(app: Commands) -> None:
    app.command("check")(check)


def check(config: ConfigOption = None) -> None:
    """Validate the configuration, without starting anything. Prints every mistake with its position."""
    from taskgate.assembly.open_app import build_for_check
    from taskgate.config.problems import ConfigError
    from taskgate.core.errors import TaskgateError

    loaded = loaded_or_exit(config)
    try:
        count = build_for_check(loaded)
    except ConfigError as error:
        raise _wrong(loaded.secret_values.text(str(error))) from None
    except TaskgateError as problem:
        raise _wrong(loaded.secret_values.text(problem.message)) from None
    for warning in loaded.warnings:
        echo(f"warning: {warning}", err=True)
    for skipped in loaded.skipped:
        echo(f"{skipped.server} skipped: {skip_reason(skipped)}", err=True)
    if count == 0:
        raise _wrong(ALL_SKIPPED if loaded.skipped else NO_SERVERS)
    _note_missing_programs(loaded)
    _note_missing_interpreter(loaded)
    _note_busy_port(loaded)
    servers = f"{count} server" + ("" if count == 1 else "s")
    if loaded.path is None:
        echo(f"No configuration file found; the bundled demo is used ({servers}). Create one with: taskgate init")
    else:
        echo(f"Configuration valid: {loaded.path} ({servers}).")


def _wrong(why: str) -> Exit:
    echo(why, err=True)
    return Exit(ExitCode.USAGE)


def _note_missing_programs(loaded: LoadedConfig) -> None:
    """Warn about missing programs. Only their own server fails, so the file is still valid."""
    from taskgate.mcp.failures import ChildFailure
    from taskgate.mcp.stdio.process import ChildSpec, child_environment, find_program

    for name, server in loaded.root.servers.items():
        if server.command is None or not server.enabled:
            continue
        folder = loaded.path.parent if loaded.path is not None else None
        cwd = str(folder / server.cwd) if folder is not None and server.cwd is not None else server.cwd
        spec = ChildSpec(server.command, env=server.env, cwd=cwd)
        try:
            find_program(spec, child_environment(spec))
        except ChildFailure as missing:
            why = loaded.secret_values.text(missing.message)
            echo(f"warning: servers.{name}: {why}; this server cannot start on this machine", err=True)


def _note_missing_interpreter(loaded: LoadedConfig) -> None:
    """Warn about scopes with scripts where the interpreter is not installed: their callers are not offered `run_script`."""
    from taskgate.assembly.scripts import interpreter

    wanting = [name for name, scope in loaded.root.scopes.items() if scope.scripts == "on"]
    found = interpreter().availability() if wanting else None
    if found is not None and not found.available:
        echo(f"warning: scopes.{wanting[0]}.scripts: scripts cannot run here. {found.reason}", err=True)


def _note_busy_port(loaded: LoadedConfig) -> None:
    """Note that the port is in use. This is not a mistake: the gateway itself may be running."""
    host, port = loaded.root.listen.host, loaded.root.listen.port
    why = listen_problem(host, port)
    if why is not None:
        echo(f"note: {why}", err=True)
