"""`taskgate status`: the gateways of this user that are running now, and which one the other commands talk to."""

from __future__ import annotations

import glob
import json
import os
import signal
from typing import Annotated, Any

import typer

from taskgate import clock
from taskgate.bridge.meeting import read_record
from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.folders import find_config, gateway_key, state_folder

DEFAULT_GATEWAY = "http://127.0.0.1:7467"
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts: one object a line.")]


class SeveralGateways(Exception):
    """More than one gateway runs, and nothing says which one is meant."""


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
        say.note(
            "No gateway is running. `taskgate serve` starts one; `taskgate stdio` starts one when a client needs it."
        )


def stop() -> None:
    """End the gateways that clients started; they come back when a client needs them."""
    found = [record for record in running_gateways() if record["kind"] == "on-demand"]
    for record in found:
        os.kill(record["pid"], signal.SIGTERM)
        print(f"{record['url']} (process {record['pid']}) is told to end.")
    if not found:
        say.note("No gateway that a client started is running.")
        raise typer.Exit(ExitCode.NOT_FOUND)


def reload(
    gateway: Annotated[str | None, typer.Option("--gateway", help="Address of the gateway.")] = None,
    as_json: Json = False,
) -> None:
    """Let a running gateway read its configuration again. A file with mistakes changes nothing."""
    from taskgate.cli.gateway_api import GatewayApi, ask_gateway

    def work(api: GatewayApi) -> None:
        done = api.post("/api/v1/system/reload", {}).value
        print(json.dumps(done) if as_json else "The configuration was read again and is in force.")

    ask_gateway(work, gateway, None, as_json)


def running_gateways() -> list[dict[str, Any]]:
    """What the gateways of this state folder say about themselves, without the keys; those that crashed are left out."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(state_folder(os.environ)), "run", "*.json"))):
        record = read_record(path)
        if record is not None and _alive(record.get("pid")):
            kept = {name: value for name, value in record.items() if name != "key"}
            found.append({**kept, "log": path.removesuffix(".json") + ".log"})
    return found


def default_gateway() -> str:
    """The gateway that commands talk to when nothing is said: the one of the configuration that is found here, or the only one."""
    running = running_gateways()
    config = find_config(None, os.environ)
    own = gateway_key(state_folder(os.environ), config)
    for record in running:
        if os.path.basename(record["log"]) == f"{own}.log":
            return str(record["url"])
    if len(running) > 1:
        known = ", ".join(f"{record['url']} ({record['config'] or 'demo'})" for record in running)
        raise SeveralGateways(f"Several gateways are running: {known}. Say which with --gateway or $TASKGATE_URL.")
    return str(running[0]["url"]) if running else DEFAULT_GATEWAY


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
    return "\n".join(say.clean(line) for line in lines)
