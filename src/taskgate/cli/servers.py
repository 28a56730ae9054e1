"""`taskgate servers status|show|reconnect|drain|enable`: the servers of a running gateway."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from taskgate.cli import printing
from taskgate.cli.command_line import Commands
from taskgate.cli.gateway_api import GatewayApi, print_rows, read, run_with_gateway
from taskgate.cli.server_logins import Name, list_servers, login, logout
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.replies.servers import ServerRow


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("Manage servers, and log in to those that require OAuth.")
    group.command("list")(list_servers)
    group.command("login")(login)
    group.command("logout")(logout)
    group.command("status")(status)
    group.command("show")(show)
    group.command("reconnect")(reconnect)
    group.command("drain")(drain)
    group.command("enable")(enable)
    app.add(group, "servers")


def status(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Show the state of all servers of a running gateway."""

    from taskgate.replies.servers import ServerRow

    def work(api: GatewayApi) -> None:
        print_rows(api.get("/api/v1/servers").value, ServerRow, as_json, "No server is configured.", _print_all)

    run_with_gateway(work, gateway, token, as_json)


def show(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Show one server of a running gateway: state, budgets, tools with digests, and stderr."""

    from taskgate.replies.servers import ServerDetail

    def work(api: GatewayApi) -> None:
        value = api.get(f"/api/v1/servers/{quote(name, safe='')}").value
        if as_json:
            print(json.dumps(value, ensure_ascii=False))
            return
        row = read(value, ServerDetail)
        _print_all([row])
        for key, number in value["budgets"].items():
            print(f"  {key}: {number if number is not None else 'none'}")
        for tool in row.tools:
            mark = "  quarantined" if tool.quarantined else "  changed" if tool.changed else ""
            print(printing.clean(f"  {tool.digest[:19]}  {tool.name}{mark}"))
        for line in row.stderr:
            print(printing.clean(f"  stderr: {line}"))

    run_with_gateway(work, gateway, token, as_json)


def reconnect(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Reconnect a server now, without waiting for the backoff. A connected server is pinged."""
    _do(name, "reconnect", gateway, token, as_json)


def drain(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Remove a server from all scopes; running calls finish. Reverted by `enable`, or by a restart with a SQLite store."""
    _do(name, "drain", gateway, token, as_json)


def enable(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Return a drained server to its scopes."""
    _do(name, "enable", gateway, token, as_json)


def _do(name: str, action: str, gateway: str | None, token: str | None, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        done = api.post(f"/api/v1/servers/{quote(name, safe='')}/{action}", {}).value
        print(json.dumps(done) if as_json else f"{printing.clean(done['name'])} is {done['done']}.")

    run_with_gateway(work, gateway, token, as_json)


def _print_all(rows: Sequence[ServerRow]) -> None:
    for row in rows:
        state = "drained" if row.drained else row.state
        generations = " and ".join(row.generations) or "not known yet"
        problem = f"  {row.last_error}" if row.last_error else ""
        print(printing.clean(f"{row.name}  {state}  {row.transport}, {generations}{problem}"))
