"""`taskgate grants`: list and revoke standing grants, the approvals that also cover later calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Option
from taskgate.cli.gateway_api import GatewayApi, print_rows, run_with_gateway, whole_id
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.replies.approvals import GrantRow

GrantId = Annotated[str, Argument(metavar="ID", help="Grant id; its beginning or end is enough.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("List and revoke standing grants (approvals for a limited time).")
    group.command("list")(list_)
    group.command("revoke")(revoke)
    app.add(group, "grants")


def list_(
    everything: Annotated[bool, Option("--all", help="Include expired and revoked grants.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List the grants in force. To create one: taskgate approvals approve ID --grant MINUTES."""

    from taskgate.replies.approvals import GrantRow

    def work(api: GatewayApi) -> None:
        nothing = "No grants." if everything else "No grants in force."
        print_rows(_rows(api, everything), GrantRow, as_json, nothing, _table)

    run_with_gateway(work, gateway, token, as_json)


def revoke(grant_id: GrantId, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Revoke a grant. Calls that it covered require approval again; a call that was already sent is not stopped."""

    def work(api: GatewayApi) -> None:
        full = _full_id(api, grant_id)
        done = api.post(f"/api/v1/grants/{full}/revoke", {}).value
        if as_json:
            print(json.dumps(done, ensure_ascii=False))
        else:
            print(
                printing.clean(f"Revoked {full}: calls of {done['tool']} on {done['server']} require approval again.")
            )

    run_with_gateway(work, gateway, token, as_json)


def _rows(api: GatewayApi, everything: bool) -> list[dict[str, Any]]:
    query = "?all=1" if everything else ""
    rows: list[dict[str, Any]] = api.get(f"/api/v1/grants{query}").value
    return rows


def _full_id(api: GatewayApi, given: str) -> str:
    """Return a full id unchanged, or the only grant in force whose id begins or ends with `given`."""
    if len(given) >= len("gr_") + 26:
        return given
    return whole_id([str(row["id"]) for row in _rows(api, False)], given, "grants")


def _table(rows: list[GrantRow]) -> None:
    headings = ("Id", "Tool", "Server", "Caller", "Scope", "Arguments", "Granted by", "Ends")
    printing.table(headings, [_cells(row) for row in rows])


def _cells(row: GrantRow) -> tuple[str, ...]:
    ends = printing.local_time(row.until)
    if row.revoked_at is not None:
        ends = f"revoked {printing.local_time(row.revoked_at)} by {row.revoked_by}"
    return (
        row.id,
        row.tool,
        row.server,
        row.principal or "(all)",
        row.scope,
        ("as approved" if row.exact_arguments else "any") + (", one script" if row.script_digest else ""),
        ", ".join(row.granted_by),
        ends,
    )
