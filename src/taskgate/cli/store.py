"""`taskgate store`: check, migrate, compact and copy the store, or declare that it was restored from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Exit, Failed, Option
from taskgate.cli.configuration import ConfigOption
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.loading import loaded_or_exit
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.core.errors import TaskgateError


_POSTGRESQL_SPACE = (
    "This store is a PostgreSQL database: its autovacuum makes the space of deleted rows available to new rows. To give it "
    "back to the file system as well, stop the gateways and run in the database: VACUUM (FULL, ANALYZE);"
)


def register(app: Commands) -> None:
    """Add the commands to the application."""
    group = Commands("Check, migrate, compact and copy the store, or declare it restored from a backup.")
    group.command("check")(check)
    group.command("migrate")(migrate)
    group.command("compact")(compact)
    group.command("copy")(copy)
    group.command("restored")(restored)
    group.command("trust")(trust)
    app.add(group, "store")


def check(config: ConfigOption = None) -> None:
    """Check whether a gateway can start with the configured store. Nothing is changed."""
    from taskgate.assembly.shared_store import check_shared, shared_url
    from taskgate.assembly.stores import check_store, store_path
    from taskgate.core.errors import TaskgateError

    loaded = loaded_or_exit(config)
    try:
        if (url := shared_url(loaded)) is not None:
            print(log.without_secrets(f"Store ok: {check_shared(url)}."))
            return
        path = store_path(loaded)
        check_store(path)
    except TaskgateError as problem:
        raise _failed(problem) from None
    print(f"Store ok: {path}" + ("." if path.exists() else " (will be created at the first start)."))


def migrate(
    config: ConfigOption = None,
    check_only: Annotated[
        bool, Option("--check", help="Only report missing migrations; exit code 9 if there are any.")
    ] = False,
) -> None:
    """Migrate the schema of the configured PostgreSQL store. Starting a gateway does the same."""
    from taskgate.assembly.shared_store import migrate_shared, missing_migrations, shared_url
    from taskgate.core.errors import TaskgateError

    url = shared_url(loaded_or_exit(config))
    if url is None:
        print("Nothing to do: a SQLite store is migrated at each start.")
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
        raise Exit(ExitCode.UNHEALTHY)
    else:
        print(f"{missing} migrations were applied; the schema is up to date.")


def compact(
    config: ConfigOption = None,
    check_only: Annotated[
        bool, Option("--check", help="Only report the size, how much of it is unused, and the space that is needed.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="One JSON object.")] = False,
) -> None:
    """Rewrite the file of a SQLite store without the space of deleted rows. No gateway may use it.

    Files of older versions need this once; afterwards a running gateway gives such space back by itself.
    """
    import json

    from taskgate.assembly.shared_store import shared_url
    from taskgate.assembly.stores import store_path
    from taskgate.core.errors import TaskgateError
    from taskgate.store.sqlite.compact import compact as compact_file
    from taskgate.store.sqlite.compact import space_of

    loaded = loaded_or_exit(config)
    try:
        if shared_url(loaded) is not None:
            raise Failed(_POSTGRESQL_SPACE, ExitCode.USAGE)
        path = store_path(loaded)
        before, after = (space_of(path), None) if check_only else compact_file(path)
    except TaskgateError as problem:
        raise _failed(problem) from None
    if as_json:
        found = {"path": str(path), **before._asdict(), "bytes_after": after.bytes if after is not None else None}
        print(json.dumps(found))
    elif after is None:
        print(
            f"{path} has {before.bytes:,} bytes, {before.unused_bytes:,} of them unused. Compacting needs "
            f"{before.needed_bytes:,} bytes beside it; {before.available_bytes:,} are free."
            + ("" if before.gives_back else " A running gateway cannot shorten this file: an older version created it.")
        )
    else:
        print(f"{path} had {before.bytes:,} bytes and has {after.bytes:,} now.")


def copy(
    source: Annotated[
        str, Argument(metavar="FROM", help="SQLite file, or postgresql://…. Stop all gateways that use it.")
    ],
    target: Annotated[str, Argument(metavar="TO", help="postgresql://… of an empty database, or a new SQLite file.")],
) -> None:
    """Copy a SQLite store to an empty PostgreSQL database, or back to a new file.

    The copy is all or nothing. The source is not changed.
    """
    from taskgate.assembly.shared_store import SCHEMES, copy_from_shared, copy_to_shared
    from taskgate.core.errors import TaskgateError

    if source.startswith(SCHEMES) == target.startswith(SCHEMES):
        raise Failed(
            "One of FROM and TO must be a PostgreSQL URL (postgresql://user@host/database), the other a file.",
            ExitCode.USAGE,
        )
    try:
        if target.startswith(SCHEMES):
            copy_to_shared(_file(source), target, lambda table, rows: print(f"{table}: {rows}"))
        else:
            copy_from_shared(source, _file(target), lambda table, rows: print(f"{table}: {rows}"))
    except TaskgateError as problem:
        raise _failed(problem) from None
    print("Copied. Set store.url to the new address and start the gateway; it continues the open tasks.")


def restored(config: ConfigOption = None) -> None:
    """Declare that the configured store was restored from a backup. Run it before the first gateway starts.

    At its next start, a gateway ends calls that may run only once with outcome unknown instead of sending them, and revokes
    grants, unused approvals and logins. `taskgate store trust` reverts this.
    """
    from taskgate.assembly.restored_store import declare_restored
    from taskgate.core.errors import TaskgateError

    loaded = loaded_or_exit(config)
    try:
        declare_restored(loaded)
    except TaskgateError as problem:
        raise _failed(problem) from None
    print(
        "Store marked as restored. At the next start, calls that may run only once end with outcome unknown, and grants, "
        "unused approvals and logins are revoked."
    )
    if tokens := [token.id for token in loaded.root.tokens]:
        print("Tokens that were revoked after the backup are valid again. Review these, and revoke them again:")
        for name in tokens:
            print(f"  {name}")


def trust(config: ConfigOption = None) -> None:
    """Declare that the configured store is current, so that its open calls may run. Stop all gateways that use it."""
    from taskgate.assembly.restored_store import trust_restored
    from taskgate.core.errors import TaskgateError

    try:
        found = trust_restored(loaded_or_exit(config))
    except TaskgateError as problem:
        raise _failed(problem) from None
    print("Store marked as current." if found else "Nothing to do: the store was not marked as restored.")


def _file(given: str) -> Path:
    return Path(given.removeprefix("sqlite:///"))


def _failed(problem: TaskgateError) -> Exit:
    printing.note(problem.message)
    return Exit(ExitCode.UNHEALTHY)
