"""`taskgate status`, `stop` and `reload`: this user's running gateways."""

from __future__ import annotations

import json
import os
import signal
from typing import Annotated, Any

import typer

from taskgate import clock
from taskgate.cli import printing
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi, ask_gateway
from taskgate.cli.local_gateways import running_gateways

Json = Annotated[bool, typer.Option("--json", help="JSON for scripts: one object a line.")]


def register(app: typer.Typer) -> None:
    """Put the commands on the application."""
    app.command("status")(status)
    app.command("stop")(stop)
    app.command("reload")(reload)


def status(as_json: Json = False) -> None:
    """List this user's running gateways: where they are, what they serve, and since when."""
    found = running_gateways()
    for record in found:
        print(json.dumps(record, ensure_ascii=False) if as_json else _shown(record))
    if not found and not as_json:
        printing.note(
            "No gateway is running. `taskgate serve` starts one; `taskgate stdio` starts one when a client needs it."
        )


def stop() -> None:
    """End the gateways that clients started; they come back when a client needs them."""
    found = [record for record in running_gateways() if record["kind"] == "on-demand"]
    for record in found:
        os.kill(record["pid"], signal.SIGTERM)
        print(f"{record['url']} (process {record['pid']}) is told to end.")
    if not found:
        printing.note("No gateway that a client started is running.")
        raise typer.Exit(ExitCode.NOT_FOUND)


def reload(
    gateway: Annotated[str | None, typer.Option("--gateway", help="Address of the gateway.")] = None,
    as_json: Json = False,
) -> None:
    """Let a running gateway read its configuration again. A file with mistakes changes nothing."""

    def work(api: GatewayApi) -> None:
        done = api.post("/api/v1/system/reload", {}).value
        print(json.dumps(done) if as_json else "The configuration was read again and is in force.")

    ask_gateway(work, gateway, None, as_json)


def _shown(record: dict[str, Any]) -> str:
    minutes = max(0, int(clock.wall() - record["since"])) // 60
    kind = "started by a client, ends when idle" if record["kind"] == "on-demand" else "started with `taskgate serve`"
    lines = [
        str(record["url"]),
        f"  serves   {record['config'] or 'the bundled demo'}",
        f"  process  {record['pid']}, version {record['version']}, for {minutes} min, {kind}",
    ]
    if record["kind"] == "on-demand":
        lines.append(f"  log      {record['log']}")
    return "\n".join(printing.clean(line) for line in lines)
