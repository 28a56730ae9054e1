"""`taskgate scripts`: list the scripts that run at a gateway, and stop them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from taskgate.cli import printing
from taskgate.cli.command_line import Commands, Option
from taskgate.cli.gateway_api import GatewayApi, print_rows, read, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.replies.tasks import OperatorTask

Principal = Annotated[str | None, Option("--principal", help="Scripts of this principal.")]
Scope = Annotated[str | None, Option("--scope", help="Scripts in this scope.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("List and stop scripts of all callers.")
    group.command("list")(list_)
    group.command("stop")(stop)
    app.add(group, "scripts")


def list_(
    principal: Principal = None,
    scope: Scope = None,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the scripts that have not ended."""

    from taskgate.replies.tasks import OperatorTask

    def work(api: GatewayApi) -> None:
        given = {key: value for key, value in (("principal", principal), ("scope", scope)) if value}
        rows = api.get(f"/api/v1/scripts?{urlencode(given)}").value["scripts"]
        print_rows(rows, OperatorTask, as_json, "No scripts are running.", _table)

    run_with_gateway(work, gateway, token, as_json)


def stop(
    principal: Principal = None,
    scope: Scope = None,
    everything: Annotated[bool, Option("--all", help="All scripts.")] = False,
    *,
    reason: Annotated[str | None, Option("--reason", help="Shown to the callers and in the audit log.")] = None,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Stop scripts. They make no further calls; calls that were sent end as when a task is cancelled."""
    body: dict[str, Any] = {"all": True} if everything else {}
    body |= {key: value for key, value in (("principal", principal), ("scope", scope), ("reason", reason)) if value}

    from taskgate.replies.tasks import StoppedScripts

    def work(api: GatewayApi) -> None:
        value = api.post("/api/v1/scripts/stop", body).value
        if as_json:
            print(json.dumps(value, ensure_ascii=False))
            return
        done = read(value, StoppedScripts)
        for row in done.stopped:
            print(printing.clean(f"Stopped {row.id} of {row.principal}: {row.ran}."))
        if not done.stopped:
            printing.note("No matching script is running.")

    run_with_gateway(work, gateway, token, as_json)


def _table(rows: list[OperatorTask]) -> None:
    headings = ("Task", "State", "Caller", "Scope", "Created")
    printing.table(
        headings,
        [(row.id, row.state, row.principal, row.scope, printing.local_time(row.created_at)) for row in rows],
    )
