"""`taskgate tokens`, `usage` and `data`: credentials of people, what they used, and what is kept under their name."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sys
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from taskgate.cli import say
from taskgate.cli.gateways import ApiProblem, GatewayApi, ask_gateway, print_rows
from taskgate.cli.say import ExitCode
from taskgate.cli.target import Gateway, Json, Token

# `taskgate usage`: who used what of a running gateway, as a table, as JSON lines or as CSV.

_AMOUNTS = ("calls", "errors", "seconds", "bytes_in", "bytes_out", "cost")


def register_usage(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("usage")(usage)


def usage(
    *,
    days: Annotated[int, typer.Option("--days", min=1, max=400, help="How many days back, with today.")] = 7,
    by: Annotated[
        str, typer.Option("--by", help="What to add up by: day, principal, tenant, server, tool, with commas.")
    ] = "principal,server,tool",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Who used what: calls, errors, seconds, bytes, and what models cost. Without the right to see everybody's: your own."""

    def work(api: GatewayApi) -> None:
        rows = api.get(f"/api/v1/usage?{urlencode({'days': days, 'by': by})}").value
        if as_json:
            for row in rows:
                print(json.dumps(row, ensure_ascii=False))
        elif as_csv:
            _print_csv(rows)
        elif not rows:
            say.note(f"Nothing was used in the last {days} days.")
        else:
            _print_table(rows, tuple(part.strip() for part in by.split(",")))

    ask_gateway(work, gateway, token, as_json)


def _print_csv(rows: list[dict[str, Any]]) -> None:
    from taskgate.core.usage import UsageRow
    from taskgate.core.usage import as_csv as written

    print(written(UsageRow(**row) for row in rows), end="")


def _print_table(rows: list[dict[str, Any]], groups: tuple[str, ...]) -> None:
    shown = [
        [say.clean(str(row[group]) or "none") for group in groups] + [_number(row[n]) for n in _AMOUNTS] for row in rows
    ]
    head = [*groups, *_AMOUNTS]
    widths = [max(len(line[place]) for line in [head, *shown]) for place in range(len(head))]
    for line in [head, *shown]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


# `taskgate data export|erase`: everything a running gateway keeps under one person's name, and forgetting it.

Principal = Annotated[
    str, typer.Option("--principal", help="Whose: the id of a token, or ISSUER#SUBJECT.", show_default=False)
]


def register_data(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Export or erase what is kept under one person's name.", no_args_is_help=True)
    group.command("export")(export)
    group.command("erase")(erase)
    app.add_typer(group, name="data")


def export(principal: Principal, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Print all of it: tasks with arguments, results and answers, approvals, grants, usage, sessions, accounts."""

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
            say.note(f"Nothing is kept under the name {say.clean(principal)}.")

    ask_gateway(work, gateway, token, as_json)


def erase(
    *,
    principal: Principal,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed without a terminal.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel their tasks that have not ended.")] = False,
    gateway: Gateway = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Forget all of it. The audit chain stays whole: it keeps the person's name and digests, nothing that was said."""

    def work(api: GatewayApi) -> None:
        if not yes:
            _confirm(principal)
        done = api.post("/api/v1/data/erase", {"principal": principal, "cancel": cancel}).value
        if as_json:
            print(json.dumps(done, ensure_ascii=False))
            return
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in done["erased"].items() if count]
        counts += [f"the account at {say.clean(server)}" for server in done["accounts"]]
        say.note(f"Erased: {', '.join(counts) or 'there was nothing'}.")

    ask_gateway(work, gateway, token, as_json)


def _confirm(principal: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ApiProblem(ExitCode.USAGE, "Without a terminal say --yes. Nothing was erased.")
    if not typer.confirm(f"Erase everything that is kept under the name {say.clean(principal)}? It cannot be undone."):
        raise ApiProblem(ExitCode.CANCELLED, "Nothing was erased.")


# `taskgate tokens new|list|revoke`: make a token for a caller or an approver, of which only the digest goes into the
# configuration, look at those of a running gateway, and end one before its time.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_TAKEN = ("operator", "anonymous")


def register_token(app: typer.Typer) -> None:
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
            say.note(f"Revoked: {', '.join(done['revoked'])}. Take it out of the configuration, too.")

    ask_gateway(work, gateway, token, as_json)


def _show(rows: list[Any]) -> None:
    for row in rows:
        state = f"revoked by {row['revoked_by']}" if row["revoked_at"] else f"until {row['expires_at'] or 'revoked'}"
        print(f"{say.clean(row['principal'])}  {', '.join(row['roles']) or '-'}  {say.clean(state)}")


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
        say.note(
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
    say.note(f"Give this token to {name}; it is not shown again. Add to `tokens` in your configuration:")
    say.note(f'  - {{id: {name}, sha256: "{digest}"{granted}{bound}}}')
    if not roles:
        say.note("It may call tools and holds no role. For a person who decides about calls, add --role approver.")


def register(app: typer.Typer) -> None:
    register_token(app)
    register_usage(app)
    register_data(app)
