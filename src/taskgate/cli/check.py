"""`taskgate check`: validate the configuration without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from taskgate.cli.configuration import ConfigOption, loaded_or_exit, why_left_out
from taskgate.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig


NO_SERVERS = "No server is configured, so there is nothing to call. Add one under `servers`, or run: taskgate import"


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(config: ConfigOption = None) -> None:
    """Build everything that `serve` would start, and say whether it is in order."""
    from taskgate.assembly.build import build_for_check
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
        typer.echo(f"warning: {warning}", err=True)
    for left_out in loaded.left_out:
        typer.echo(f"{left_out.server} skipped: {why_left_out(left_out)}", err=True)
    if count == 0:
        raise _wrong(NO_SERVERS)
    _note_missing_programs(loaded)
    _note_busy_port(loaded)
    what = "The configuration" if loaded.path is not None else "No file was found; the bundled demo"
    typer.echo(f"{what} is in order: {count} server(s).")


def _wrong(why: str) -> typer.Exit:
    typer.echo(why, err=True)
    return typer.Exit(ExitCode.USAGE)


def _note_missing_programs(loaded: LoadedConfig) -> None:
    """A program that is not there keeps its server from starting and nobody else, so it is no reason to refuse the file."""
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
            said = loaded.secret_values.text(missing.message)
            typer.echo(f"warning: servers.{name}: {said}; this server would not start here", err=True)


def _note_busy_port(loaded: LoadedConfig) -> None:
    """A port that is taken is no mistake of the file: it may be this very gateway that is running."""
    host, port = loaded.root.listen.host, loaded.root.listen.port
    why = why_not_free(host, port)
    if why is not None:
        typer.echo(f"note: {host}:{port} cannot be listened on at the moment: {why}", err=True)


def why_not_free(host: str, port: int) -> str | None:
    """Why nobody could listen there now; None if somebody could."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            return str(problem.strerror)
    return None
