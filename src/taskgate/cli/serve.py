"""`taskgate serve` and `taskgate stdio`: run the gateway over HTTP, or on standard input and output."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

from taskgate.cli.command_line import Commands, Exit, Option
from taskgate.cli.configuration import ConfigOption, loaded_or_exit

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig


def register(app: Commands) -> None:
    app.command("serve")(serve)
    app.command("stdio")(stdio)


def serve(
    *,
    config: ConfigOption = None,
    host: Annotated[str | None, Option(help="Address to bind. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, Option(min=0, max=65535, help="Port. Default: 7467; 0 selects a free one.")] = None,
    workers: Annotated[
        int, Option(min=1, max=64, help="Worker processes on one port. More than 1 needs a PostgreSQL store.")
    ] = 1,
    on_demand: Annotated[bool, Option("--on-demand", hidden=True)] = False,
    inherited: Annotated[str | None, Option("--inherited", hidden=True)] = None,
) -> None:
    """Run the gateway over HTTP, and for this user's `taskgate stdio`. Without a configuration file: with a demo server."""
    from taskgate.cli.run_gateway import run_gateway, run_on_demand

    if on_demand:
        run_on_demand(config)
    elif inherited is not None:
        from taskgate.cli.workers import Inherited, run_worker

        run_worker(loaded_or_exit(config), host, Inherited.read(inherited))
    elif workers > 1:
        from taskgate.cli.workers import run_workers

        run_workers(loaded_or_exit(config), host, port, workers, announce)
    else:
        run_gateway(loaded_or_exit(config), host, port, announce)


def stdio(
    config: ConfigOption = None,
    scope: Annotated[str | None, Option(help="Scope to serve. Default: `default`.")] = None,
    alone: Annotated[
        bool,
        Option("--alone", help="Run a separate gateway in this process, instead of using the local one."),
    ] = False,
) -> None:
    """Serve on stdin and stdout, for clients that start their servers as programs.

    Connects the client to this user's local gateway, which is started on demand and exits when it is idle.
    """
    if alone:
        from taskgate.cli.run_gateway import run_alone

        run_alone(loaded_or_exit(config), scope)
    else:
        from taskgate.bridge.main import bridge

        raise Exit(bridge(config, scope))


def announce(loaded: LoadedConfig, host: str, port: int, login_url: str = "") -> None:
    """Print the address, and how to connect a client.

    The login link works once. It is printed only on a terminal, never to a log.
    """
    from taskgate.assembly.exposure import BANNER, is_reachable_without_login

    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if loaded.root.listen.tls is None else "https"
    url = f"{scheme}://{shown}:{port}/mcp"
    print(f"Taskgate is serving at {url}", flush=True)
    if is_reachable_without_login(loaded.root, host):
        print(BANNER, flush=True)
    if loaded.path is None:
        print(
            "No configuration file found; serving the bundled demo server. Create one with: taskgate init", flush=True
        )
    if sys.stdout.isatty() or loaded.path is None:
        block = json.dumps({"mcpServers": {"taskgate": {"type": "http", "url": url}}})
        print(f"Add to your client's configuration:\n  {block}", flush=True)
        print(f"Or, for Claude Code:\n  claude mcp add --transport http taskgate {url}", flush=True)
    if loaded.path is None:
        print(
            "Then ask your agent to list the files, or to delete one: a deletion waits for your approval.", flush=True
        )
    if sys.stdout.isatty() and login_url:
        print(f"Approve calls in your browser (the link works once):\n  {login_url}", flush=True)
    elif loaded.path is None:
        print("Approve calls in your browser: `taskgate approvals login` prints a link.", flush=True)
