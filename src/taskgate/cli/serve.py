"""`taskgate serve`, `taskgate check`: the gateway over HTTP, and the same path without opening."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli.say import ExitCode

if TYPE_CHECKING:
    from taskgate.config.load import LeftOut, LoadedConfig

NO_SERVERS = "No server is configured, so there is nothing to call. Add one under `servers`, or run: taskgate import"
ConfigOption = Annotated[
    str | None, typer.Option("-c", "--config", help="Configuration file; default: taskgate.yaml here or in ~/.config.")
]


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)
    app.command("stdio")(stdio)
    app.command("check")(check)


def serve(
    *,
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; default 7467, 0 picks a free one.")] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that serve on one port; more than 1 needs a PostgreSQL store.")
    ] = 1,
    on_demand: Annotated[bool, typer.Option("--on-demand", hidden=True)] = False,
    inherited: Annotated[str | None, typer.Option("--inherited", hidden=True)] = None,
) -> None:
    """Serve the gateway over HTTP, and for this user's `taskgate stdio`. Without a configuration file: a bundled demo server."""
    from taskgate.cli.run_gateway import run_gateway, run_on_demand

    if on_demand:
        run_on_demand(config)
    elif inherited is not None:
        from taskgate.cli.run_gateway import Inherited, run_worker

        run_worker(loaded_or_exit(config), host, Inherited.read(inherited))
    elif workers > 1:
        from taskgate.cli.run_gateway import run_workers

        run_workers(loaded_or_exit(config), host, port, workers, announce)
    else:
        run_gateway(loaded_or_exit(config), host, port, announce)


def stdio(
    config: ConfigOption = None,
    scope: Annotated[str | None, typer.Option(help="Which scope to serve; default: the default one.")] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="A gateway in this process with a store of its own, instead of the shared one."),
    ] = False,
) -> None:
    """Serve on standard input and output, for clients that start their servers themselves.

    It joins the client to this user's local gateway, which is started when it is first needed and ends when it is needed no more.
    """
    if alone:
        from taskgate.cli.run_gateway import run_alone

        run_alone(loaded_or_exit(config), scope)
    else:
        from taskgate.bridge.main import bridge

        raise typer.Exit(bridge(config, scope))


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


def why_left_out(gone: LeftOut) -> str:
    """Why a server of the file is not served."""
    if gone.reason == "env_missing":
        return f"{gone.detail} is not set"
    return f"{gone.reason} {gone.detail}".strip()


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


def loaded_or_exit(config: str | None) -> LoadedConfig:
    """Read the configuration, or print every problem and leave."""
    from taskgate.config.load import load_or_default
    from taskgate.config.problems import ConfigError
    from taskgate.telemetry.logs import log

    try:
        loaded = load_or_default(config)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    log.hide(loaded.secret_values.text)
    return loaded


def announce(loaded: LoadedConfig, host: str, port: int, login_url: str = "") -> None:
    """Tell a person what to do next: the address, and a block to paste into a client.

    The login link opens the inbox once. It is for the person at this terminal only, never for a log.
    """
    from taskgate.assembly.identity import BANNER, is_open_to_strangers

    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if loaded.root.listen.tls is None else "https"
    url = f"{scheme}://{shown}:{port}/mcp"
    print(f"Taskgate is serving at {url}", flush=True)
    if is_open_to_strangers(loaded.root, host):
        print(BANNER, flush=True)
    if loaded.path is None:
        print("No configuration file was found, so a demo server with a few files is behind it.", flush=True)
    if sys.stdout.isatty() or loaded.path is None:
        block = json.dumps({"mcpServers": {"taskgate": {"type": "http", "url": url}}})
        print(f"Paste into your client's configuration:\n  {block}", flush=True)
        print(f"Or, for Claude Code:\n  claude mcp add --transport http taskgate {url}", flush=True)
    if loaded.path is None:
        print(
            "Then ask your agent to list the files, or to delete one: that call waits until you approve it.", flush=True
        )
    if sys.stdout.isatty() and login_url:
        print(f"Approvals, in your browser (this link works once):\n  {login_url}", flush=True)
    elif loaded.path is None:
        print("Approvals: `taskgate approvals login` prints a link for your browser.", flush=True)
