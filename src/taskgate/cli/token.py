"""`taskgate token new`: make a token for a caller or an approver. Only its digest goes into the configuration."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import Annotated

import typer

from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.cli.target import Json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_TAKEN = ("operator", "anonymous")


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Make tokens for callers and approvers.", no_args_is_help=True)
    group.command("new")(new)
    # A group with one command would otherwise swallow its name.
    group.callback()(lambda: None)
    app.add_typer(group, name="token")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who the token stands for.")],
    role: Annotated[
        list[str] | None, typer.Option("--role", help="A role; may be repeated. Default: approver.")
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
    roles = role if role is not None else ["approver"]
    token = f"tg_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(token.encode()).hexdigest()
    if as_json:
        row = {"id": name, "token": token, "sha256": digest, "roles": roles, **({"scope": scope} if scope else {})}
        print(json.dumps(row))
        return
    bound = f", scope: {scope}" if scope else ""
    print(token)
    say.note(f"Give this token to {name}; it is not shown again. Add to `tokens` in your configuration:")
    say.note(f'  - {{id: {name}, sha256: "{digest}", roles: [{", ".join(roles)}]{bound}}}')
