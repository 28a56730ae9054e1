"""The server that a command connects to: a gateway, any URL, or a program that the command starts.

`aimed` adds the options `--gateway`, `--url`, `--scope`, `--token`, `--login`, `--generation` and `--json` to a command and
passes it the resulting `Target`. Nothing is opened here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from taskgate.cli.browser_login import browser_auth
from taskgate.cli.command_line import BadParameter, Context, Option, SimpleCommand
from taskgate.cli.local_gateways import DEFAULT_GATEWAY, SeveralGateways, default_gateway, operator_token

_COMMAND = "taskgate.command"
Gateway = Annotated[
    str | None,
    Option(
        "--gateway", help=f"Address of a gateway. Default: $TASKGATE_URL, the running gateway, or {DEFAULT_GATEWAY}."
    ),
]
Url = Annotated[str | None, Option("--url", help="Address of any MCP server.")]
Scope = Annotated[str | None, Option("--scope", help="Scope of the gateway.")]
Token = Annotated[str | None, Option("--token", help="Bearer token. Default: $TASKGATE_TOKEN.", show_default=False)]
GenerationChoice = Annotated[
    str | None,
    Option("--generation", help="Protocol generation: `stateful` (2025-11-25) or `stateless` (2026-07-28)."),
]
Login = Annotated[bool, Option("--login", help="Log in with the browser if the server requires it.")]
Timeout = Annotated[float | None, Option("--timeout", min=0.001, help="Timeout in seconds.")]
JsonLines = Annotated[bool, Option("--json", help="Print JSON, one object per line.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]


class TakesCommand(SimpleCommand):
    """A command that may end with `-- PROGRAM ARGUMENTS`, which are stored separately from its own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            ctx.meta[_COMMAND] = args[split + 1 :]
            args = args[:split]
        return super().parse_args(ctx, args)


class Target:
    """A server and how to reach it. A plain class, because a completion must not wait for the import of `msgspec`."""

    def __init__(
        self,
        address: str | list[str],
        token: str | None,
        generation: str | None,
        *,
        login: bool = False,
        is_gateway: bool = False,
    ) -> None:
        self.address = address
        self.token = token
        self.generation = generation
        self.login = login
        self.is_gateway = is_gateway

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `connect`, except the address."""
        settings: dict[str, Any] = {"token": self.token, "generation": self.generation}
        if self.login:
            settings["auth"] = browser_auth()
        return settings

    @property
    def name(self) -> str:
        return self.address if isinstance(self.address, str) else " ".join(self.address)


def with_target_options(command: Callable[..., None], *, generation: str | None = None) -> Callable[..., None]:
    """Add the options that select a server. The command receives `target` and `as_json`.

    If `generation` is given, the command works only with that one, and the option is omitted.
    """
    options: dict[str, Any] = {"gateway": Gateway, "url": Url, "scope": Scope, "token": Token, "login": Login}
    if generation is None:
        options["generation"] = GenerationChoice
    switches = ("login", "as_json")

    def run(ctx: Context, **given: Any) -> None:
        selected = {"generation": generation, **{name: given.pop(name) for name in options}}
        command(target=choose_target(ctx, **selected), **given)

    own = inspect.signature(command, eval_str=True).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", keyword, annotation=Context),
        *(parameter.replace(kind=keyword) for parameter in own if parameter.name not in ("target", "as_json")),
        *(
            inspect.Parameter(name, keyword, default=False if name in switches else None, annotation=kind)
            for name, kind in {**options, "as_json": JsonLines}.items()
        ),
    ]
    # `command_line` reads the options from the signature and the help from the docstring.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run


def choose_target(
    ctx: Context,
    *,
    gateway: str | None,
    url: str | None,
    scope: str | None,
    token: str | None,
    generation: str | None,
    login: bool,
) -> Target:
    """Return the server that the options select, or the default gateway. Raises BadParameter."""
    command: list[str] = ctx.meta.get(_COMMAND, [])
    if sum((bool(command), url is not None, gateway is not None)) > 1:
        raise BadParameter("use only one of --gateway, --url and -- COMMAND")
    if generation not in (None, "stateful", "stateless"):
        raise BadParameter("--generation must be `stateful` or `stateless`")
    if command:
        return Target(command, None, generation)
    token = token or os.environ.get("TASKGATE_TOKEN") or None
    if url is not None:
        return Target(url, token, generation, login=login)
    try:
        address = gateway or os.environ.get("TASKGATE_URL") or default_gateway()
    except SeveralGateways as problem:
        raise BadParameter(str(problem)) from None
    token = token or (None if login else operator_token(urlsplit(address).hostname))
    return Target(gateway_address(address, scope), token, generation, login=login, is_gateway=True)


def gateway_address(address: str, scope: str | None) -> str:
    """Return the MCP endpoint of a gateway; an address with a path is used unchanged."""
    parts = urlsplit(address)
    base = address.rstrip("/") if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/mcp"
    return f"{base}/{scope}" if scope else base
