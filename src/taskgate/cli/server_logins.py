"""`taskgate servers list|login|logout`: OAuth logins of the gateway at its servers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskgate.cli import printing
from taskgate.cli.browser_login import show_in_browser
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.target import Json

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig
    from taskgate.config.model.servers import Server
    from taskgate.identity.kept_logins import KeptLogins, Login


Name = Annotated[str, typer.Argument(metavar="NAME", help="The server, as the configuration calls it.")]
Principal = Annotated[
    str, typer.Option("--principal", help="Whose account it is, where each caller has one. Default: everybody's.")
]
Config = Annotated[str | None, typer.Option("--config", "-c", help="The configuration file.")]


def login(
    name: Name,
    config: Config = None,
    principal: Principal = "",
    scope: Annotated[str | None, typer.Option("--scope", help="OAuth scopes to ask for instead.")] = None,
    as_json: Json = False,
) -> None:
    """Log in with your browser. The gateway uses the login for all its callers (or for one), and renews it by itself."""
    loaded, server = _wanted(name, config)
    assert server.auth is not None
    if principal and not server.auth.per_user:
        printing.note(
            f"All callers of {name} share one login: its auth has no `per_user: true`. Leave --principal out."
        )
        raise typer.Exit(ExitCode.USAGE)
    from taskgate.client.errors import ClientError

    try:
        made = asyncio.run(_log_in(str(server.url), server, scope or server.auth.scope))
    except (ClientError, OSError) as problem:
        printing.note(f"The login to {name} failed: {problem}.")
        raise typer.Exit(ExitCode.CANNOT_CONNECT) from None
    _logins(loaded).keep(name, made, principal)
    if as_json:
        whose = {"principal": principal} if principal else {}
        print(json.dumps({"server": name, **whose, "issuer": made.issuer, "renews": made.refresh_token is not None}))
        return
    how_long = "It is renewed by itself." if made.refresh_token else "It cannot be renewed: log in again when it ends."
    printing.note(f"Logged in to {name} at {made.issuer}. {how_long} A running gateway uses it with the next call.")


def list_servers(config: Config = None, as_json: Json = False) -> None:
    """All servers, how each is shown who we are, and whose accounts are connected."""
    from taskgate.identity.account_logins import account_row

    loaded = _loaded(config)
    rows: list[dict[str, Any]] = []
    for name, server in loaded.root.servers.items():
        auth = server.auth
        row: dict[str, Any] = {"server": name, "auth": auth.type if auth is not None else None, "accounts": []}
        if auth is not None and auth.type == "authorization_code":
            every = _logins(loaded).of_server(name)
            row["accounts"] = [account_row(principal, every[principal]) for principal in sorted(every)]
            row["per_user"] = auth.per_user
        rows.append(row)
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("\n".join(_described(row)))


def _described(row: dict[str, Any]) -> list[str]:
    kind = row["auth"] or "no login needed"
    if row.get("per_user"):
        kind += ", an account per user"
    lines = [f"{row['server']}: {kind}"]
    if row["auth"] == "authorization_code" and not row["accounts"]:
        lines.append(f"  nobody is connected; run: taskgate servers login {row['server']}")
    for account in row["accounts"]:
        how = "renewed by itself" if account["renews"] else "not renewed"
        lines.append(f"  {account['principal'] or 'all callers'}: {account['state']} at {account['issuer']}, {how}")
    return lines


def logout(name: Name, config: Config = None, principal: Principal = "", as_json: Json = False) -> None:
    """Forget the login to a server."""
    loaded, _ = _wanted(name, config)
    found = _logins(loaded).forget(name, principal)
    if as_json:
        print(json.dumps({"server": name, "forgotten": found}))
    else:
        printing.note(f"The login to {name} is forgotten." if found else f"Nobody was logged in to {name}.")


def _loaded(config: str | None) -> LoadedConfig:
    from taskgate.cli.configuration import loaded_or_exit

    return loaded_or_exit(config)


def _wanted(name: str, config: str | None) -> tuple[LoadedConfig, Server]:
    loaded = _loaded(config)
    server = loaded.root.servers.get(name)
    if server is None or server.auth is None or server.auth.type != "authorization_code":
        known = [each for each, found in loaded.root.servers.items() if found.auth is not None]
        hint = f"Such servers are: {', '.join(known)}." if known else "No server of this configuration has one."
        printing.note(f"{name} is no server with `auth: {{type: authorization_code}}`. {hint}")
        raise typer.Exit(ExitCode.USAGE)
    return loaded, server


def _logins(loaded: LoadedConfig) -> KeptLogins:
    from taskgate.assembly.identity import installation_secret, kept_logins

    return kept_logins(loaded, installation_secret(loaded))


async def _log_in(url: str, server: Server, scope: str | None) -> Login:
    from taskgate.client.oauth import browser_login
    from taskgate.identity.kept_logins import Login

    assert server.auth is not None
    storage: dict[str, Any] = {}
    oauth = browser_login(
        show=show_in_browser,
        storage=storage,
        client_name="taskgate",
        client_id=server.auth.client_id,
        client_secret=server.auth.client_secret,
    )
    wanted = f', scope="{scope}"' if scope else ""
    await oauth.answer(url, f'Bearer realm="login"{wanted}', None)
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
