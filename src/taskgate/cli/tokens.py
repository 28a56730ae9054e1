"""`taskgate tokens`: create, list and revoke tokens of callers and approvers.

The configuration holds only the digest of a token.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import TYPE_CHECKING, Annotated

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Failed, Option
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi, print_rows, run_with_gateway
from taskgate.cli.target import Gateway, Json, Token

if TYPE_CHECKING:
    from taskgate.replies.tokens import TokenRow

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_RESERVED = ("operator", "anonymous")


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("Create, list and revoke tokens of callers and approvers.")
    group.command("new")(new)
    group.command("list")(list_all)
    group.command("revoke")(revoke)
    app.add(group, "tokens")
    app.add(group, "token", hidden=True)


def list_all(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """List the tokens of a running gateway, including revoked ones."""

    from taskgate.replies.tokens import TokenRow

    def work(api: GatewayApi) -> None:
        rows = api.get("/api/v1/tokens").value["tokens"]
        print_rows(rows, TokenRow, as_json, "No tokens are configured.", _show)

    run_with_gateway(work, gateway, token, as_json)


def revoke(
    name: Annotated[str, Argument(metavar="NAME", help="Token id, or ISSUER#SUBJECT.")],
    reason: Annotated[str, Option("--reason", help="Reason, for the audit log.")] = "",
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Revoke a token. All gateways that share the store refuse it within four seconds."""

    def work(api: GatewayApi) -> None:
        done = api.post("/api/v1/tokens/revoke", {"name": name, "reason": reason}).value
        if as_json:
            print(json.dumps(done, ensure_ascii=False))
        else:
            printing.note(f"Revoked: {', '.join(done['revoked'])}. Also remove it from the configuration.")

    run_with_gateway(work, gateway, token, as_json)


def _show(rows: list[TokenRow]) -> None:
    for row in rows:
        state = f"revoked by {row.revoked_by}" if row.revoked_at else f"until {row.expires_at or 'revoked'}"
        print(f"{printing.clean(row.principal)}  {', '.join(row.roles) or '-'}  {printing.clean(state)}")


def new(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the caller or approver.")],
    role: Annotated[
        list[str] | None,
        Option(
            "--role", help="Role, for example approver; may be repeated. Without one, the token can only call tools."
        ),
    ] = None,
    scope: Annotated[str | None, Option("--scope", help="The only scope this token may use.")] = None,
    as_json: Json = False,
) -> None:
    """Create a token. It is printed once; the configuration holds only its digest."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise Failed(
            f"{name!r} is not a valid token name: use letters, digits and _.@-, but not {' or '.join(_RESERVED)}.",
            ExitCode.USAGE,
        )
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
        printing.note("The token can call tools, but not approve calls. For an approver, add --role approver.")
