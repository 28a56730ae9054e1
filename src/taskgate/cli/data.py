"""`taskgate data`: export or erase everything that is stored for one principal."""

from __future__ import annotations

import json
import sys
from typing import Annotated
from urllib.parse import urlencode

from taskgate.cli import printing
from taskgate.cli.command_line import Commands, Option, confirm
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import ApiProblem, GatewayApi, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token

Principal = Annotated[str, Option("--principal", help="Token id, or ISSUER#SUBJECT.", show_default=False)]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("Export or erase the stored data of one principal.")
    group.command("export")(export)
    group.command("erase")(erase)
    app.add(group, "data")


def export(principal: Principal, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Print all stored data of a principal: tasks with arguments and results, approvals, grants, usage, sessions, accounts."""

    def work(api: GatewayApi) -> None:
        after: str | None = ""
        count = 0
        while after is not None:
            page = api.get(f"/api/v1/data/export?{urlencode({'principal': principal, 'after': after})}").value
            for row in page["rows"]:
                print(json.dumps(row, ensure_ascii=False, indent=None if as_json else 2))
            count += len(page["rows"])
            after = page["next"]
        if not count:
            printing.note(f"No data is stored for {printing.clean(principal)}.")

    run_with_gateway(work, gateway, token, as_json)


def erase(
    *,
    principal: Principal,
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation. Required without a terminal.")] = False,
    cancel: Annotated[bool, Option("--cancel", help="Cancel unfinished tasks of the principal.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Delete all stored data of a principal. The audit log keeps the name and digests, so its hash chain stays valid."""

    def work(api: GatewayApi) -> None:
        if not yes:
            _confirm(principal)
        done = api.post("/api/v1/data/erase", {"principal": principal, "cancel": cancel}).value
        if as_json:
            print(json.dumps(done, ensure_ascii=False))
            return
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in done["erased"].items() if count]
        counts += [f"the account at {printing.clean(server)}" for server in done["accounts"]]
        printing.note(f"Erased: {', '.join(counts) or 'nothing was stored'}.")

    run_with_gateway(work, gateway, token, as_json)


def _confirm(principal: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ApiProblem(ExitCode.USAGE, "Nothing was erased. Without a terminal, confirm with --yes.")
    if not confirm(f"Erase all data of {printing.clean(principal)}? This cannot be undone."):
        raise ApiProblem(ExitCode.CANCELLED, "Nothing was erased.")
