"""Opens connections to the database, says why one cannot be used, brings the schema up to date, and knows the SQL."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import conninfo

from taskgate.core.errors import GatewayFault
from taskgate.store.sql_files import for_postgres, read_migrations, read_queries

# The SQL of this adapter, by name, with its values written as the driver wants them.

_ARRAY: Final = re.compile(r"(?<!:):([a-z]\w*)(::\w+\[\])")
_VALUE: Final = re.compile(r"(?<!:):([a-z]\w*)")
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)


def _in_drivers_style(text: str) -> bytes:
    """Arrays travel in binary form: their text form has to be quoted and escaped, piece by piece."""
    plain = _COMMENT.sub("", text).replace("%", "%%")
    return _VALUE.sub(r"%(\1)s", _ARRAY.sub(r"%(\1)b\2", plain)).encode()


SQL: Final = {name: _in_drivers_style(text) for name, text in read_queries(__package__, for_postgres).items()}


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)


Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST_SERVER: Final = 140_000
CONNECT_WITHIN_S: Final = 5
STATEMENT_WITHIN_MS: Final = 10_000
MIGRATE_WITHIN_MS: Final = 600_000
_MIGRATION_LOCK: Final = 7_236_410_385
NOT_SURE: Final = ("off", "local")
_MOST_PROBES: Final = 3
"""No more connections than a gateway needs anyway: a pool of sessions gives no more than it has."""
_WANTED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""What a gateway does with each of its tables."""
_CREATES: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)


class Found(NamedTuple):
    """What a database is like."""

    server_version: int
    schema: int
    known_schema: int
    synchronous_commit: str
    is_read_only: bool
    synchronous_standbys: str = ""
    """The server's own setting; empty where no standby must have a commit before it is acknowledged."""
    missing: tuple[str, ...] = ()
    """Migrations and tables that should be there by the number of the schema, and are not."""
    forbidden: tuple[str, ...] = ()
    """What a gateway does and this user may not do."""
    is_pooled: bool = False
    """A connection to it may get another session of the server for each transaction."""


def connect(url: str, name: str = "taskgate", *, statement_ms: int = STATEMENT_WITHIN_MS) -> Connection:
    """Raises `psycopg.Error`."""
    wanted: dict[str, Any] = {
        "connect_timeout": CONNECT_WITHIN_S,
        "application_name": name,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": STATEMENT_WITHIN_MS,
    }
    said = _parts_of(url)
    options = {key: value for key, value in wanted.items() if key not in said}
    connection = psycopg.connect(url, autocommit=True, **options)
    connection.execute(
        "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false), "
        "set_config('idle_in_transaction_session_timeout', %s, false)",
        [str(statement_ms), str(statement_ms), str(2 * statement_ms)],
    )
    return connection


_UNREADABLE_ADDRESS: Final = (
    "the address cannot be read. It looks like postgresql://user:password@host:5432/database, where what is special in "
    "a name or password is percent-encoded (%40 for @, %2F for /, %3A for :, %25 for %, %20 for a space)"
)


def look(connection: Connection, url: str) -> Found:
    """`url`: where it is connected to."""
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
    return Found(version, schema, len(migrations()), synchronous, read_only, standbys, missing, forbidden, pooled)


def _session(connection: Connection) -> int:
    """The number of the server's session that serves us at this moment."""
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    number: int = row[0]
    return number


def _is_pooled(connection: Connection, url: str) -> bool:
    """Whether a pooler gives a session to whoever has a transaction, and takes it back after that.

    A pooler is recognized by the number that it made up for the connection. One that keeps a session for each connection is of no
    consequence. In the others, a session of which a transaction has ended serves the next one that begins, whoever's it is: so
    another connection gets ours, or we get another one, while that one's transaction is open.
    """
    ours = _session(connection)
    if connection.info.backend_pid == ours:
        return False
    with ExitStack() as held:
        for _ in range(_MOST_PROBES):
            other = held.enter_context(connect(url, "taskgate check"))
            try:
                other.execute("BEGIN")
            except psycopg.errors.ProtocolViolation:  # a pooler that allows no transactions of several statements
                return True
            if _session(other) == ours or _session(connection) != ours:
                return True
    return False


def _tables_of(schema: int) -> list[str]:
    """The tables that the migrations up to this number make."""
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
        "SELECT name, string_agg(wanted, ', ' ORDER BY wanted) FROM unnest(%s::text[]) AS name, unnest(%s::text[]) AS wanted "
        "WHERE NOT has_table_privilege(to_regclass(name), wanted) GROUP BY name ORDER BY name",
        [_tables_of(schema), list(_WANTED)],
    )
    return create + tuple(f"{wanted} on {name}" for name, wanted in rows)


def check(found: Found) -> None:
    """Raises GatewayFault if a gateway cannot work on such a database."""
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
            f"The store was written by a newer Taskgate (schema {found.schema}, this one knows {found.known_schema}). "
            "Start the newer version."
        )
    if found.missing:
        raise refused(
            f"Schema {found.schema} is not whole: {', '.join(found.missing)} missing. Put the database back from a backup, or "
            "name an empty one."
        )
    if found.synchronous_commit in NOT_SURE:
        raise refused(
            f"synchronous_commit is {found.synchronous_commit!r} for this user and database, so a crash could take back work that "
            "was acknowledged. Set it to 'on': ALTER ROLE ... SET synchronous_commit = on."
        )


def check_rights(found: Found) -> None:
    """Raises GatewayFault if a gateway could not write with this user."""
    if found.forbidden:
        raise refused(f"permission denied: the user may not {', '.join(found.forbidden)}. Let it own the tables.")


def migrate(connection: Connection) -> int:
    """Apply what is missing, all of it or nothing; of several gateways that start together one does it."""
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


def look_at(url: str) -> Found:
    """Raises GatewayFault if the database cannot be reached."""
    try:
        with connect(url, "taskgate check") as connection:
            return look(connection, url)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def look_around(url: str) -> tuple[int, list[tuple[Any, ...]]]:
    """The database's time in milliseconds, and the rows of the gateways that it has seen. Raises GatewayFault."""
    try:
        with connect(url, "taskgate check") as connection:
            now = connection.execute(SQL["database_now"]).fetchone()
            assert now is not None
            known = connection.execute("SELECT to_regclass('replicas') IS NOT NULL").fetchone()
            return now[0], connection.execute(SQL["seen_replicas"]).fetchall() if known and known[0] else []
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def migrate_at(url: str) -> None:
    try:
        with connect(url, "taskgate migrate") as connection:
            migrate(connection)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def refused(why: str) -> GatewayFault:
    return GatewayFault("store_unavailable", f"The PostgreSQL store cannot be used: {why}")


def reason(error: psycopg.Error) -> str:
    """One line of what the server or the driver said, without the address or the password."""
    if error.diag.message_primary:
        return error.diag.message_primary
    # What the driver adds to explain a line follows it and is indented.
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1] if lines else type(error).__name__


def shown_url(url: str) -> str:
    """The address without its password."""
    try:
        said = _parts_of(url)
    except psycopg.Error:
        return "postgresql://…"
    place = str(said.get("host") or "localhost") + (f":{said['port']}" if said.get("port") else "")
    return f"postgresql://{place}/{said.get('dbname') or ''}"


def _parts_of(url: str) -> dict[str, Any]:
    """Raises psycopg.ProgrammingError in words of our own: the driver's quote what it could not read, which may be the password.

    With an `@` or `/` of a password that was not encoded, the driver would take a part of it for the host or the database and
    name that in what it says.
    """
    place = url.partition("://")[2].partition("?")[0]
    before_path, slash, path = place.partition("/")
    if before_path.count("@") <= 1 and "@" not in slash + path:
        with suppress(psycopg.Error):
            return conninfo.conninfo_to_dict(url)
    raise psycopg.ProgrammingError(_UNREADABLE_ADDRESS)
