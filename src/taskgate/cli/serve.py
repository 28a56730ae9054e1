"""`taskgate serve` and `taskgate stdio`: run the gateway over HTTP, or on standard input and output."""

from __future__ import annotations

from typing import Annotated

from taskgate.cli.announcement import announce
from taskgate.cli.command_line import Commands, Exit, Option
from taskgate.cli.configuration import ConfigOption
from taskgate.cli.loading import loaded_for_client, loaded_or_exit


def register(app: Commands) -> None:
    app.command("serve")(serve)
    app.command("stdio")(stdio)


def serve(
    *,
    config: ConfigOption = None,
    host: Annotated[str | None, Option(help="Address to bind. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, Option(min=0, max=65535, help="Port. Default: 7467; 0 selects a free one.")] = None,
    workers: Annotated[
        int,
        Option(
            min=1,
            max=64,
            help="Deprecated: processes on one port. Start several gateways on one PostgreSQL store instead.",
        ),
    ] = 1,
    on_demand: Annotated[bool, Option("--on-demand", hidden=True)] = False,
    found: Annotated[bool, Option("--found", hidden=True)] = False,
    inherited: Annotated[str | None, Option("--inherited", hidden=True)] = None,
) -> None:
    """Run the gateway over HTTP, and for this user's `taskgate stdio`. Without a configuration file: with a demo server."""
    from taskgate.cli.run_gateway import run_gateway, run_on_demand

    if on_demand:
        run_on_demand(config, is_found=found)
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

        run_alone(loaded_for_client(config), scope)
    else:
        from taskgate.bridge.main import bridge

        raise Exit(bridge(config, scope))
