"""`taskgate servers list|login|logout`: OAuth logins of the gateway at its servers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

from taskgate.cli import printing
from taskgate.cli.browser_login import show_in_browser
from taskgate.cli.command_line import Argument, Failed, Option
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.target import Json

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig
    from taskgate.core.settings.servers import Server
    from taskgate.identity.login_store import Login, LoginStore


Name = Annotated[str, Argument(metavar="NAME", help="Server id in the configuration.")]
Principal = Annotated[
    str,
    Option("--principal", help="With `per_user: true`: the caller whose account it is. Default: the shared account."),
]
Config = Annotated[str | None, Option("--config", "-c", help="Configuration file.")]


def login(
    name: Name,
    config: Config = None,
    principal: Principal = "",
    scope: Annotated[
        str | None, Option("--scope", help="OAuth scopes to request instead of the configured ones.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Log in to a server with your browser. The gateway uses and renews the login for all callers, or for one."""
    loaded, server = _configured(name, config)
    assert server.auth is not None
    if principal and not server.auth.per_user:
        raise Failed(
            f"All callers of {name} share one login (no `per_user: true` in its auth). Remove --principal.",
            ExitCode.USAGE,
        )
    from taskgate.client.errors import ClientError

    try:
        made = asyncio.run(_log_in(str(server.url), server, scope or server.auth.scope))
    except (ClientError, OSError) as problem:
        raise Failed(f"Login to {name} failed: {problem}.", ExitCode.CANNOT_CONNECT) from None
    _logins(loaded).keep(name, made, principal)
    if as_json:
        account = {"principal": principal} if principal else {}
        print(json.dumps({"server": name, **account, "issuer": made.issuer, "renews": made.refresh_token is not None}))
        return
    renewal = (
        "It is renewed automatically." if made.refresh_token else "It cannot be renewed; log in again when it expires."
    )
    printing.note(f"Logged in to {name} at {made.issuer}. {renewal} A running gateway uses it for the next call.")


def list_servers(config: Config = None, as_json: Json = False) -> None:
    """List the configured servers, their authentication, and connected accounts."""
    from msgspec.structs import asdict

    from taskgate.identity.account_logins import account_row

    loaded = _loaded(config)
    rows: list[dict[str, Any]] = []
    for name, server in loaded.root.servers.items():
        auth = server.auth
        row: dict[str, Any] = {"server": name, "auth": auth.type if auth is not None else None, "accounts": []}
        if auth is not None and auth.type == "authorization_code":
            every = _logins(loaded).of_server(name)
            row["accounts"] = [asdict(account_row(principal, every[principal])) for principal in sorted(every)]
            row["per_user"] = auth.per_user
        rows.append(row)
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("\n".join(_described(row)))


def _described(row: dict[str, Any]) -> list[str]:
    kind = row["auth"] or "no authentication"
    if row.get("per_user"):
        kind += ", one account per user"
    lines = [f"{row['server']}: {kind}"]
    if row["auth"] == "authorization_code" and not row["accounts"]:
        lines.append(f"  not logged in; run: taskgate servers login {row['server']}")
    for account in row["accounts"]:
        how = "renewed automatically" if account["renews"] else "not renewed"
        lines.append(f"  {account['principal'] or 'all callers'}: {account['state']} at {account['issuer']}, {how}")
    return lines


def logout(name: Name, config: Config = None, principal: Principal = "", as_json: Json = False) -> None:
    """Delete the stored login to a server."""
    loaded, _ = _configured(name, config)
    found = _logins(loaded).forget(name, principal)
    if as_json:
        print(json.dumps({"server": name, "forgotten": found}))
    else:
        printing.note(f"Login to {name} deleted." if found else f"There was no login to {name}.")


def _loaded(config: str | None) -> LoadedConfig:
    from taskgate.cli.loading import loaded_or_exit

    return loaded_or_exit(config)


def _configured(name: str, config: str | None) -> tuple[LoadedConfig, Server]:
    loaded = _loaded(config)
    server = loaded.root.servers.get(name)
    if server is None or server.auth is None or server.auth.type != "authorization_code":
        known = [each for each, found in loaded.root.servers.items() if found.auth is not None]
        hint = f"Servers with auth: {', '.join(known)}." if known else "No server of this configuration has `auth`."
        raise Failed(f"{name} is not a server with `auth: {{type: authorization_code}}`. {hint}", ExitCode.USAGE)
    return loaded, server


def _logins(loaded: LoadedConfig) -> LoginStore:
    from taskgate.assembly.server_accounts import installation_secret, open_login_store

    return open_login_store(loaded, installation_secret(loaded))


async def _log_in(url: str, server: Server, scope: str | None) -> Login:
    from taskgate.client.oauth import browser_login
    from taskgate.identity.login_store import Login

    assert server.auth is not None
    storage: dict[str, Any] = {}
    oauth = browser_login(
        show=show_in_browser,
        storage=storage,
        client_name="taskgate",
        client_id=server.auth.client_id,
        client_secret=server.auth.client_secret,
    )
    scope_part = f', scope="{scope}"' if scope else ""
    await oauth.answer(url, f'Bearer realm="login"{scope_part}', None)
    kept = storage[url]
    return Login(
        issuer=kept["issuer"],
        client_id=kept["client"]["client_id"],
        access_token=kept["access_token"],
        refresh_token=kept["refresh_token"],
        client_secret=kept["client"]["client_secret"],
        scope=kept["scope"],
        expires_at=kept["expires_at"],
    )
