"""`taskgate status`, `stop` and `reload`: this user's running gateways."""

from __future__ import annotations

import json
import os
import signal
from typing import Annotated, Any

from taskgate import clock
from taskgate.cli import printing
from taskgate.cli.command_line import Commands, Failed, Option
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, run_with_gateway
from taskgate.cli.local_gateways import running_gateways

CONFLICT = 409
Json = Annotated[bool, Option("--json", help="Print JSON, one object per line.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("status")(status)
    app.command("stop")(stop)
    app.command("reload")(reload)


def status(as_json: Json = False) -> None:
    """List this user's running gateways: address, configuration, process and uptime."""
    found = running_gateways()
    for record in found:
        print(json.dumps(record, ensure_ascii=False) if as_json else _shown(record))
    if not found and not as_json:
        printing.note("No gateway is running. Start one with: taskgate serve (`taskgate stdio` starts one on demand)")


def stop() -> None:
    """Stop the gateways that clients started. A client starts them again on demand."""
    found = [record for record in running_gateways() if record["kind"] == "on-demand"]
    for record in found:
        os.kill(record["pid"], signal.SIGTERM)
        print(f"Stopping {record['url']} (process {record['pid']}).")
    if not found:
        raise Failed(
            "No gateway started by a client is running. Stop `taskgate serve` with Ctrl-C or SIGTERM.",
            ExitCode.NOT_FOUND,
        )


def reload(
    gateway: Annotated[str | None, Option("--gateway", help="Address of the gateway.")] = None,
    as_json: Json = False,
) -> None:
    """Reload the configuration of a running gateway. If the file is invalid, the running configuration is kept."""

    def work(api: GatewayApi) -> None:
        try:
            done = api.post("/api/v1/system/reload", {}).value
        except ApiProblem as problem:
            # It is no refusal by a person: the file is invalid.
            raise ApiProblem(ExitCode.USAGE if problem.status == CONFLICT else problem.code, str(problem)) from None
        print(json.dumps(done) if as_json else "Configuration reloaded.")

    run_with_gateway(work, gateway, None, as_json)


def _shown(record: dict[str, Any]) -> str:
    minutes = max(0, int(clock.wall() - record["since"])) // 60
    kind = "started by a client, exits when idle" if record["kind"] == "on-demand" else "started with `taskgate serve`"
    lines = [
        str(record["url"]),
        f"  serves   {record['config'] or 'the bundled demo'}",
        f"  process  {record['pid']}, version {record['version']}, up {minutes} min, {kind}",
    ]
    if record["kind"] == "on-demand":
        lines.append(f"  log      {record['log']}")
    return "\n".join(printing.clean(line) for line in lines)
