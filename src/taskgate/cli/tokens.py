"""`taskgate tokens`: create, list and revoke tokens of callers and approvers.

The configuration holds only the digest of a token.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import Annotated, Any

import typer

from taskgate.cli import printing
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi, ask_gateway, print_rows
from taskgate.cli.target import Gateway, Json, Token

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_TAKEN = ("operator", "anonymous")


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Make, list and revoke tokens of callers and approvers.", no_args_is_help=True)
    group.command("new")(new)
    group.command("list")(list_all)
    group.command("revoke")(revoke)
    app.add_typer(group, name="tokens")
    app.add_typer(group, name="token", hidden=True)


def list_all(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List the tokens of a running gateway, and what was revoked."""

    def work(api: GatewayApi) -> None:
        rows = api.get("/api/v1/tokens").value["tokens"]
        print_rows(rows, as_json, "This gateway has no tokens.", _show)

    ask_gateway(work, gateway, token, as_json)


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The id of a token, or a principal: ISSUER#SUBJECT.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it goes into the audit log.")] = "",
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """End a token before its time: it is refused within five seconds by every gateway that shares the store."""

    def work(api: GatewayApi) -> None:
        done = api.post("/api/v1/tokens/revoke", {"name": name, "reason": reason}).value
        if as_json:
            print(json.dumps(done, ensure_ascii=False))
        else:
            printing.note(f"Revoked: {', '.join(done['revoked'])}. Take it out of the configuration, too.")

    ask_gateway(work, gateway, token, as_json)


def _show(rows: list[Any]) -> None:
    for row in rows:
        state = f"revoked by {row['revoked_by']}" if row["revoked_at"] else f"until {row['expires_at'] or 'revoked'}"
        print(f"{printing.clean(row['principal'])}  {', '.join(row['roles']) or '-'}  {printing.clean(state)}")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who the token stands for.")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="A role, such as approver; may be repeated. Without it the token may only call."),
    ] = None,
    scope: Annotated[str | None, typer.Option("--scope", help="The only scope this token may use.")] = None,
    as_json: Json = False,
) -> None:
    """Make a token. It is shown once; the configuration keeps only its digest."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        printing.note(
            f"{name!r} cannot be the name of a token: use letters, digits and _.@-, but not {' or '.join(_TAKEN)}."
        )
        raise typer.Exit(ExitCode.USAGE)
    roles = role or []
    token = f"tg_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(token.encode()).hexdigest()
    if as_json:
        row = {"id": name, "token": token, "sha256": digest, "roles": roles, **({"scope": scope} if scope else {})}
        print(json.dumps(row))
        return
    granted = f", roles: [{', '.join(roles)}]" if roles else ""
    bound = f", scope: {scope}" if scope else ""
    print(token)
    printing.note(f"Give this token to {name}; it is not shown again. Add to `tokens` in your configuration:")
    printing.note(f'  - {{id: {name}, sha256: "{digest}"{granted}{bound}}}')
    if not roles:
        printing.note("It may call tools and holds no role. For a person who decides about calls, add --role approver.")
