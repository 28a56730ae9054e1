"""`taskgate store`: check, migrate and copy the store, or declare that it was restored from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli import printing
from taskgate.cli.configuration import ConfigOption, loaded_or_exit
from taskgate.cli.exit_codes import ExitCode
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.core.errors import TaskgateError


def register(app: typer.Typer) -> None:
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
        printing.note(
            "One of the two must be a PostgreSQL address (postgresql://user@host/database), the other a file."
        )
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
    printing.note(problem.message)
    return typer.Exit(ExitCode.UNHEALTHY)
