"""`taskgate servers login|logout`: log in to a server that wants OAuth, once, for everybody who uses this gateway."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.cli.target import Json, show_in_browser

if TYPE_CHECKING:
    from pathlib import Path

    from taskgate.config.load import LoadedConfig
    from taskgate.config.servers import Server
    from taskgate.identity.kept_logins import KeptLogins
    from taskgate.identity.server_tokens import Login

Name = Annotated[str, typer.Argument(metavar="NAME", help="The server, as the configuration calls it.")]
Config = Annotated[str | None, typer.Option("--config", "-c", help="The configuration file.")]


def register(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Log in to servers that want OAuth.", no_args_is_help=True)
    group.command("login")(login)
    group.command("logout")(logout)
    app.add_typer(group, name="servers")


def login(name: Name, config: Config = None, as_json: Json = False) -> None:
    """Log in with your browser. The gateway uses the login for all its callers, and renews it by itself."""
    loaded, server = _wanted(name, config)
    from taskgate.client.errors import ClientError

    try:
        made = asyncio.run(_log_in(str(server.url), server))
    except (ClientError, OSError) as problem:
        say.note(f"The login to {name} failed: {problem}.")
        raise typer.Exit(ExitCode.CANNOT_CONNECT) from None
    _logins(loaded).keep(name, made)
    if as_json:
        print(json.dumps({"server": name, "issuer": made.issuer, "renews": made.refresh_token is not None}))
        return
    how_long = "It is renewed by itself." if made.refresh_token else "It cannot be renewed: log in again when it ends."
    say.note(f"Logged in to {name} at {made.issuer}. {how_long} A running gateway uses it with the next call.")


def logout(name: Name, config: Config = None, as_json: Json = False) -> None:
    """Forget the login to a server."""
    loaded, _ = _wanted(name, config)
    found = _logins(loaded).forget(name)
    if as_json:
        print(json.dumps({"server": name, "forgotten": found}))
    else:
        say.note(f"The login to {name} is forgotten." if found else f"Nobody was logged in to {name}.")


def _wanted(name: str, config: str | None) -> tuple[LoadedConfig, Server]:
    from taskgate.config.load import load_or_default
    from taskgate.config.problems import ConfigError

    try:
        loaded = load_or_default(config)
    except ConfigError as problem:
        say.note(str(problem))
        raise typer.Exit(ExitCode.USAGE) from None
    server = loaded.root.servers.get(name)
    if server is None or server.auth is None or server.auth.type != "authorization_code":
        known = [each for each, found in loaded.root.servers.items() if found.auth is not None]
        hint = f"Such servers are: {', '.join(known)}." if known else "No server of this configuration has one."
        say.note(f"{name} is no server with `auth: {{type: authorization_code}}`. {hint}")
        raise typer.Exit(ExitCode.USAGE)
    return loaded, server


def _logins(loaded: LoadedConfig) -> KeptLogins:
    from taskgate.assembly.identity import kept_logins
    from taskgate.inbound.operator import house_secret

    folder: Path = loaded.state_dir
    return kept_logins(folder, house_secret(folder))


async def _log_in(url: str, server: Server) -> Login:
    from taskgate.client.oauth import browser_login
    from taskgate.identity.server_tokens import Login

    assert server.auth is not None
    storage: dict[str, Any] = {}
    oauth = browser_login(
        show=show_in_browser,
        storage=storage,
        client_name="taskgate",
        client_id=server.auth.client_id,
        client_secret=server.auth.client_secret,
    )
    scope = f', scope="{server.auth.scope}"' if server.auth.scope else ""
    await oauth.answer(url, f'Bearer realm="login"{scope}', None)
    kept = storage[url]
    return Login(
        kept["issuer"],
        kept["client"]["client_id"],
        kept["access_token"],
        kept["refresh_token"],
        kept["client"]["client_secret"],
        kept["scope"],
        kept["expires_at"],
    )
