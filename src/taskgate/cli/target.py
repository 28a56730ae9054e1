"""Which server a command talks to: a gateway, any URL, or a program it starts itself.

Turns `--gateway`, `--url`, `--scope`, `--token` and `-- COMMAND` into the arguments of `taskgate.client.connect`.
Used by `tools`, `call` and `tasks`; it opens nothing by itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer.core import TyperCommand

DEFAULT_GATEWAY = "http://127.0.0.1:7467"
_COMMAND = "taskgate.command"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

Gateway = Annotated[
    str | None, typer.Option("--gateway", help=f"Address of a gateway; default $TASKGATE_URL, else {DEFAULT_GATEWAY}.")
]
Url = Annotated[str | None, typer.Option("--url", help="Address of any MCP server, taken as it is.")]
Scope = Annotated[str | None, typer.Option("--scope", help="Scope of the gateway to use.")]
Token = Annotated[
    str | None, typer.Option("--token", help="Bearer token; default $TASKGATE_TOKEN.", show_default=False)
]
GenerationChoice = Annotated[
    str | None, typer.Option("--generation", help="Force `stateful` (2025-11-25) or `stateless` (2026-07-28).")
]
Login = Annotated[bool, typer.Option("--login", help="Log in with the browser if the server wants it.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts: one object a line.")]


class TakesCommand(TyperCommand):
    """A command line that may end with `-- PROGRAM ARGUMENTS`, kept apart from its own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            ctx.meta[_COMMAND] = args[split + 1 :]
            args = args[:split]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how to reach it."""

    address: str | list[str]
    token: str | None
    generation: str | None
    login: bool = False

    def settings(self) -> dict[str, Any]:
        """Arguments for `connect` besides the address."""
        settings: dict[str, Any] = {"token": self.token, "generation": self.generation}
        if self.login:
            from taskgate.cli.logins import browser_auth

            settings["auth"] = browser_auth()
        return settings

    @property
    def name(self) -> str:
        return self.address if isinstance(self.address, str) else " ".join(self.address)


def choose_target(
    ctx: typer.Context,
    gateway: str | None,
    url: str | None,
    scope: str | None,
    token: str | None,
    generation: str | None,
    *,
    login: bool = False,
) -> Target:
    """The one server the options name, or the default gateway."""
    command: list[str] = ctx.meta.get(_COMMAND, [])
    if sum((bool(command), url is not None, gateway is not None)) > 1:
        raise typer.BadParameter("give only one of --gateway, --url and -- COMMAND")
    if generation not in (None, "stateful", "stateless"):
        raise typer.BadParameter("--generation is `stateful` or `stateless`")
    if command:
        return Target(command, None, generation)
    token = token or os.environ.get("TASKGATE_TOKEN") or None
    if url is not None:
        return Target(url, token, generation, login)
    address = gateway or os.environ.get("TASKGATE_URL") or DEFAULT_GATEWAY
    token = token or (None if login else _operator_token(address))
    return Target(gateway_address(address, scope), token, generation, login)


def gateway_address(address: str, scope: str | None) -> str:
    """The MCP endpoint of a gateway; an address that already names a path is taken as it is."""
    parts = urlsplit(address)
    base = address.rstrip("/") if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/mcp"
    return f"{base}/{scope}" if scope else base


def _operator_token(address: str) -> str | None:
    """The operator's own token, which `serve` keeps on this machine; it is sent to no other machine."""
    if urlsplit(address).hostname not in _LOOPBACK:
        return None
    folder = os.environ.get("TASKGATE_STATE_DIR") or "~/.local/state/taskgate"
    try:
        return (Path(folder).expanduser() / "operator-token").read_text().strip() or None
    except OSError:
        return None
