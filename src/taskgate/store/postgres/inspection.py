"""Checks whether a gateway can use a database, migrates its schema, and reports why it cannot be used."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import psycopg

from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL, migrations

OLDEST_SERVER: Final = 140_000
MIGRATE_WITHIN_MS: Final = 600_000
_MIGRATION_LOCK: Final = 7_236_410_385
UNSAFE_COMMIT: Final = ("off", "local")
_MAX_PROBES: Final = 3
"""Not more connections than a gateway uses: a pool of sessions may not have more."""
_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""The privileges that a gateway needs on each of its tables."""
_CREATES: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)


class DatabaseState(NamedTuple):
    """The properties of a database that matter to a gateway."""

    server_version: int
    schema: int
    known_schema: int
    synchronous_commit: str
    is_read_only: bool
    synchronous_standbys: str = ""
    """The server's setting `synchronous_standby_names`; empty if commits do not wait for a standby."""
    missing: tuple[str, ...] = ()
    """Migrations and tables that the schema version implies but that do not exist."""
    forbidden: tuple[str, ...] = ()
    """Privileges that a gateway needs and this user does not have."""
    is_pooled: bool = False
    """Whether a pooler may use another server session for each transaction."""


def inspect(connection: Connection, url: str) -> DatabaseState:
    """Return the state of the database at `url`, to which the connection leads."""
    version = connection.info.server_version
    row = connection.execute(
        "SELECT current_setting('synchronous_commit'), "
        "current_setting('transaction_read_only') = 'on' OR pg_is_in_recovery(), "
        "to_regclass('taskgate_schema') IS NOT NULL, current_setting('synchronous_standby_names')"
    ).fetchone()
    assert row is not None
    synchronous, read_only, has_schema, standbys = row
    schema = 0
    if has_schema:
        newest = connection.execute("SELECT coalesce(max(number), 0) FROM taskgate_schema").fetchone()
        schema = newest[0] if newest is not None else 0
    missing, forbidden = _missing(connection, schema), _forbidden(connection, schema)
    pooled = _is_pooled(connection, url)
    return DatabaseState(
        server_version=version,
        schema=schema,
        known_schema=len(migrations()),
        synchronous_commit=synchronous,
        is_read_only=read_only,
        synchronous_standbys=standbys,
        missing=missing,
        forbidden=forbidden,
        is_pooled=pooled,
    )


def _session(connection: Connection) -> int:
    """Return the number of the server session that serves this connection now."""
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    number: int = row[0]
    return number


def _is_pooled(connection: Connection, url: str) -> bool:
    """Return whether a pooler assigns a server session per transaction instead of per connection.

    A pooler is recognized by the process number that it invents for the connection. Pooling per connection does no harm. Otherwise
    a session whose transaction has ended serves the next transaction of any connection: while another connection has a transaction
    open, it uses the session of this one, or this one gets another.
    """
    ours = _session(connection)
    if connection.info.backend_pid == ours:
        return False
    with ExitStack() as held:
        for _ in range(_MAX_PROBES):
            other = held.enter_context(connect(url, "taskgate check"))
            try:
                other.execute("BEGIN")
            except psycopg.errors.ProtocolViolation:  # a pooler that allows no transactions of several statements
                return True
            if _session(other) == ours or _session(connection) != ours:
                return True
    return False


def _tables_of(schema: int) -> list[str]:
    """Return the tables that the migrations up to this number create."""
    return [name for number, text in migrations() if number <= schema for name in _CREATES.findall(text)]


def _missing(connection: Connection, schema: int) -> tuple[str, ...]:
    if not schema:
        return ()
    applied = {row[0] for row in connection.execute("SELECT number FROM taskgate_schema")}
    gaps = tuple(f"migration {number}" for number, _ in migrations() if number < schema and number not in applied)
    rows = connection.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL ORDER BY name",
        [_tables_of(schema)],
    )
    return gaps + tuple(f"table {row[0]}" for row in rows)


def _forbidden(connection: Connection, schema: int) -> tuple[str, ...]:
    row = connection.execute("SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)").fetchone()
    assert row is not None
    create = () if row[0] else ("create tables",)
    rows = connection.execute(
        "SELECT name, string_agg(privilege, ', ' ORDER BY privilege) "
        "FROM unnest(%s::text[]) AS name, unnest(%s::text[]) AS privilege "
        "WHERE NOT has_table_privilege(to_regclass(name), privilege) GROUP BY name ORDER BY name",
        [_tables_of(schema), list(_PRIVILEGES)],
    )
    return create + tuple(f"{privilege} on {name}" for name, privilege in rows)


def check(found: DatabaseState) -> None:
    """Raises GatewayFault if a gateway cannot use such a database."""
    if found.server_version < OLDEST_SERVER:
        raise refused(f"PostgreSQL {found.server_version // 10_000} is too old; 14 or newer is needed.")
    if found.is_pooled:
        raise refused(
            "a pooler in transaction or statement mode (such as PgBouncer with pool_mode = transaction) is between the gateway and "
            "the database. The gateway needs sessions: for LISTEN, timeouts and prepared statements. Point store.url at the "
            "database itself or at a pool with pool_mode = session; a gateway keeps 6 connections."
        )
    if found.is_read_only:
        raise refused(
            "The database is read-only (a standby, or default_transaction_read_only). Point store.url at the primary."
        )
    if found.schema > found.known_schema:
        raise refused(
            f"The store was written by a newer Taskgate (schema {found.schema}, this version supports {found.known_schema}). "
            "Start the newer version."
        )
    if found.missing:
        raise refused(
            f"Schema {found.schema} is incomplete: {', '.join(found.missing)} missing. Restore the database from a backup, or "
            "use an empty one."
        )
    if found.synchronous_commit in UNSAFE_COMMIT:
        raise refused(
            f"synchronous_commit is {found.synchronous_commit!r} for this user and database, so a crash could lose acknowledged "
            "work. Set it to 'on': ALTER ROLE ... SET synchronous_commit = on."
        )


def check_rights(found: DatabaseState) -> None:
    """Raises GatewayFault if the user lacks privileges that a gateway needs."""
    if found.forbidden:
        raise refused(
            f"permission denied: the user may not {', '.join(found.forbidden)}. Make it the owner of the tables."
        )


def migrate(connection: Connection) -> int:
    """Apply missing migrations in one transaction. If several gateways start together, one of them does it."""
    with connection.transaction():
        connection.execute("SELECT set_config('statement_timeout', %s, true)", [str(MIGRATE_WITHIN_MS)])
        connection.execute("SELECT set_config('lock_timeout', %s, true)", [str(MIGRATE_WITHIN_MS)])
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
        connection.execute(
            "CREATE TABLE IF NOT EXISTS taskgate_schema (number integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"
        )
        row = connection.execute("SELECT coalesce(max(number), 0) FROM taskgate_schema").fetchone()
        version = row[0] if row is not None else 0
        for number, text in migrations():
            if number > version:
                connection.execute(text.encode())
                connection.execute("INSERT INTO taskgate_schema (number) VALUES (%s)", [number])
    return max(version, len(migrations()))


def inspect_url(url: str) -> DatabaseState:
    """Raises GatewayFault if the database cannot be reached."""
    try:
        with connect(url, "taskgate check") as connection:
            return inspect(connection, url)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def seen_replicas(url: str) -> tuple[int, list[tuple[Any, ...]]]:
    """Return the database's time in milliseconds and the rows of the gateways on it. Raises GatewayFault."""
    try:
        with connect(url, "taskgate check") as connection:
            now = connection.execute(SQL["database_now"]).fetchone()
            assert now is not None
            known = connection.execute("SELECT to_regclass('replicas') IS NOT NULL").fetchone()
            return now[0], connection.execute(SQL["seen_replicas"]).fetchall() if known and known[0] else []
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def migrate_url(url: str) -> None:
    try:
        with connect(url, "taskgate migrate") as connection:
            migrate(connection)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error
