"""`taskgate servers` and `taskgate store`: the servers of a running gateway, and its store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from taskgate.cli import say
from taskgate.cli.gateways import GatewayApi, ask_gateway, print_rows
from taskgate.cli.say import ExitCode
from taskgate.cli.serve import ConfigOption, loaded_or_exit
from taskgate.cli.target import Gateway, Json, Token, show_in_browser
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig
    from taskgate.config.model.servers import Server
    from taskgate.core.errors import TaskgateError
    from taskgate.identity.kept_logins import KeptLogins, Login

Name = Annotated[str, typer.Argument(metavar="NAME", help="The server, as the configuration calls it.")]
Principal = Annotated[
    str, typer.Option("--principal", help="Whose account it is, where each caller has one. Default: everybody's.")
]
Config = Annotated[str | None, typer.Option("--config", "-c", help="The configuration file.")]


def register_servers(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(help="Look after servers, and log in to those that want OAuth.", no_args_is_help=True)
    group.command("list")(list_servers)
    group.command("login")(login)
    group.command("logout")(logout)
    group.command("status")(status)
    group.command("show")(show)
    group.command("reconnect")(reconnect)
    group.command("drain")(drain)
    group.command("enable")(enable)
    app.add_typer(group, name="servers")


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
        say.note(f"All callers of {name} share one login: its auth has no `per_user: true`. Leave --principal out.")
        raise typer.Exit(ExitCode.USAGE)
    from taskgate.client.errors import ClientError

    try:
        made = asyncio.run(_log_in(str(server.url), server, scope or server.auth.scope))
    except (ClientError, OSError) as problem:
        say.note(f"The login to {name} failed: {problem}.")
        raise typer.Exit(ExitCode.CANNOT_CONNECT) from None
    _logins(loaded).keep(name, made, principal)
    if as_json:
        whose = {"principal": principal} if principal else {}
        print(json.dumps({"server": name, **whose, "issuer": made.issuer, "renews": made.refresh_token is not None}))
        return
    how_long = "It is renewed by itself." if made.refresh_token else "It cannot be renewed: log in again when it ends."
    say.note(f"Logged in to {name} at {made.issuer}. {how_long} A running gateway uses it with the next call.")


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
        say.note(f"The login to {name} is forgotten." if found else f"Nobody was logged in to {name}.")


def status(gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """How every server of a running gateway is doing."""

    def work(api: GatewayApi) -> None:
        print_rows(api.get("/api/v1/servers").value, as_json, "No server is configured.", _print_all)

    ask_gateway(work, gateway, token, as_json)


def show(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """One server of a running gateway: state, budgets, tools with their digests, last words."""

    def work(api: GatewayApi) -> None:
        row = api.get(f"/api/v1/servers/{quote(name, safe='')}").value
        if as_json:
            print(json.dumps(row, ensure_ascii=False))
            return
        _print_all([row])
        for key, value in row["budgets"].items():
            print(f"  {key}: {value if value is not None else 'none'}")
        for tool in row["tools"]:
            mark = "  quarantined" if tool["quarantined"] else "  changed" if tool["changed"] else ""
            print(say.clean(f"  {tool['digest'][:19]}  {tool['name']}{mark}"))
        for line in row["stderr"]:
            print(say.clean(f"  stderr: {line}"))

    ask_gateway(work, gateway, token, as_json)


def reconnect(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Reach a server now instead of after the back-off; one that is connected is asked for a sign of life."""
    _do(name, "reconnect", gateway, token, as_json)


def drain(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Take a server out of every scope; calls under way end. Undone by `enable`, or a restart where the store is not shared."""
    _do(name, "drain", gateway, token, as_json)


def enable(name: Name, gateway: Gateway = None, token: Token = None, as_json: Json = False) -> None:
    """Put a drained server back into its scopes."""
    _do(name, "enable", gateway, token, as_json)


def _do(name: str, action: str, gateway: str | None, token: str | None, as_json: bool) -> None:
    def work(api: GatewayApi) -> None:
        done = api.post(f"/api/v1/servers/{quote(name, safe='')}/{action}", {}).value
        print(json.dumps(done) if as_json else f"{say.clean(done['name'])} is {done['done']}.")

    ask_gateway(work, gateway, token, as_json)


def _print_all(rows: list[Any]) -> None:
    for row in rows:
        state = "drained" if row.get("drained") else row["state"]
        spoken = " and ".join(row["generations"]) or "not known yet"
        problem = f"  {row['last_error']}" if row["last_error"] else ""
        print(say.clean(f"{row['name']}  {state}  {row['transport']}, {spoken}{problem}"))


def _loaded(config: str | None) -> LoadedConfig:
    from taskgate.cli.serve import loaded_or_exit

    return loaded_or_exit(config)


def _wanted(name: str, config: str | None) -> tuple[LoadedConfig, Server]:
    loaded = _loaded(config)
    server = loaded.root.servers.get(name)
    if server is None or server.auth is None or server.auth.type != "authorization_code":
        known = [each for each, found in loaded.root.servers.items() if found.auth is not None]
        hint = f"Such servers are: {', '.join(known)}." if known else "No server of this configuration has one."
        say.note(f"{name} is no server with `auth: {{type: authorization_code}}`. {hint}")
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


# `taskgate store`: bring a PostgreSQL store up to date, look at the store, copy it between SQLite and PostgreSQL, or declare that
# it was restored from a backup.


def register_store(app: typer.Typer) -> None:
    """Put the group of commands on the application."""
    group = typer.Typer(
        help="Look at the store, bring it up to date, move it to PostgreSQL and back, or declare it restored.",
        no_args_is_help=True,
    )
    group.command("check")(check)
    group.command("migrate")(migrate)
    group.command("copy")(copy)
    group.command("restored")(restored)
    group.command("trust")(trust)
    app.add_typer(group, name="store")


def check(config: ConfigOption = None) -> None:
    """Say whether a gateway could start on the configured store. Changes nothing."""
    from taskgate.assembly.shared_store import check_shared, shared_url
    from taskgate.assembly.stores import check_store, store_path
    from taskgate.core.errors import TaskgateError

    loaded = loaded_or_exit(config)
    try:
        if (url := shared_url(loaded)) is not None:
            print(log.without_secrets(f"The store is in order: {check_shared(url)}."))
            return
        path = store_path(loaded)
        check_store(path)
    except TaskgateError as problem:
        raise _failed(problem) from None
    print(f"The store is in order: {path}" + ("." if path.exists() else " (will be made at the first start)."))


def migrate(
    config: ConfigOption = None,
    check_only: Annotated[
        bool, typer.Option("--check", help="Only say what is missing; the exit code is not 0 if something is.")
    ] = False,
) -> None:
    """Bring the schema of the configured PostgreSQL store up to date. A start does the same; this does it beforehand."""
    from taskgate.assembly.shared_store import migrate_shared, missing_migrations, shared_url
    from taskgate.core.errors import TaskgateError

    url = shared_url(loaded_or_exit(config))
    if url is None:
        print("The store is a SQLite file, which each start brings up to date by itself. Nothing to do.")
        return
    try:
        missing = missing_migrations(url)
        if not check_only and missing:
            migrate_shared(url)
    except TaskgateError as problem:
        raise _failed(problem) from None
    if not missing:
        print("The schema is up to date.")
    elif check_only:
        print(f"{missing} migrations are missing. Run: taskgate store migrate")
        raise typer.Exit(ExitCode.UNHEALTHY)
    else:
        print(f"{missing} migrations were applied; the schema is up to date.")


def copy(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A SQLite file, or postgresql://…. No gateway may use it.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="postgresql://… of an empty database, or the path of a new SQLite file.")
    ],
) -> None:
    """Copy a SQLite store into an empty PostgreSQL database, or back into a new file: all of it or nothing.

    The source is not changed.
    """
    from taskgate.assembly.shared_store import SCHEMES, copy_from_shared, copy_to_shared
    from taskgate.core.errors import TaskgateError

    if source.startswith(SCHEMES) == target.startswith(SCHEMES):
        say.note("One of the two must be a PostgreSQL address (postgresql://user@host/database), the other a file.")
        raise typer.Exit(ExitCode.USAGE)
    try:
        if target.startswith(SCHEMES):
            copy_to_shared(_file(source), target, lambda table, rows: print(f"{table}: {rows}"))
        else:
            copy_from_shared(source, _file(target), lambda table, rows: print(f"{table}: {rows}"))
    except TaskgateError as problem:
        raise _failed(problem) from None
    print("Copied. Set store.url to the new address and start the gateway; it takes over what was open.")


def restored(config: ConfigOption = None) -> None:
    """Declare that the configured store was restored from a backup. Run it after the restore and before the first gateway starts.

    At its next start a gateway sends no call of the store that may run only once (they end with outcome unknown) and ends grants,
    unspent approvals and logins. `taskgate store trust` takes this back.
    """
    from taskgate.assembly.restored_store import declare_restored
    from taskgate.core.errors import TaskgateError

    loaded = loaded_or_exit(config)
    try:
        declare_restored(loaded)
    except TaskgateError as problem:
        raise _failed(problem) from None
    print(
        "The store counts as restored. At the next start, calls that may run only once end with outcome unknown, and grants, "
        "unspent approvals and logins end."
    )
    if tokens := [token.id for token in loaded.root.tokens]:
        print("A token that was revoked after the backup is valid again. Review these, and revoke those again:")
        for name in tokens:
            print(f"  {name}")


def trust(config: ConfigOption = None) -> None:
    """Take back that the configured store counts as restored: it is current, and its open calls may run. No gateway may use it."""
    from taskgate.assembly.restored_store import trust_restored
    from taskgate.core.errors import TaskgateError

    try:
        found = trust_restored(loaded_or_exit(config))
    except TaskgateError as problem:
        raise _failed(problem) from None
    print(
        "The store counts as current from now on." if found else "The store did not count as restored. Nothing to do."
    )


def _file(said: str) -> Path:
    return Path(said.removeprefix("sqlite:///"))


def _failed(problem: TaskgateError) -> typer.Exit:
    say.note(problem.message)
    return typer.Exit(ExitCode.UNHEALTHY)


def register(app: typer.Typer) -> None:
    register_servers(app)
    register_store(app)
