"""Opens connections to the database, and formats its errors and addresses without secrets."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import conninfo

from taskgate.core.errors import GatewayFault

Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_WITHIN_S: Final = 5
STATEMENT_WITHIN_MS: Final = 10_000
_UNREADABLE_ADDRESS: Final = (
    "the address is invalid. It has the form postgresql://user:password@host:5432/database, where special characters in "
    "a name or password are percent-encoded (%40 for @, %2F for /, %3A for :, %25 for %, %20 for a space)"
)


def connect(url: str, name: str = "taskgate", *, statement_ms: int = STATEMENT_WITHIN_MS) -> Connection:
    """Open a connection with deadlines. Raises `psycopg.Error`."""
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_WITHIN_S,
        "application_name": name,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": STATEMENT_WITHIN_MS,
    }
    given = _parts_of(url)
    options = {key: value for key, value in defaults.items() if key not in given}
    connection = psycopg.connect(url, autocommit=True, **options)
    connection.execute(
        "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false), "
        "set_config('idle_in_transaction_session_timeout', %s, false)",
        [str(statement_ms), str(statement_ms), str(2 * statement_ms)],
    )
    return connection


def refused(why: str) -> GatewayFault:
    return GatewayFault("store_unavailable", f"The PostgreSQL store cannot be used: {why}")


def reason(error: psycopg.Error) -> str:
    """Return one line of the error of the server or the driver, without address and password."""
    if error.diag.message_primary:
        return error.diag.message_primary
    # The driver indents the lines that explain the one before.
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1] if lines else type(error).__name__


def shown_url(url: str) -> str:
    """Return the address without its password."""
    try:
        parts = _parts_of(url)
    except psycopg.Error:
        return "postgresql://…"
    place = str(parts.get("host") or "localhost") + (f":{parts['port']}" if parts.get("port") else "")
    return f"postgresql://{place}/{parts.get('dbname') or ''}"


def _parts_of(url: str) -> dict[str, Any]:
    """Parse the address. Raises psycopg.ProgrammingError with our own message: the driver's quotes what it cannot parse, which
    may be the password.

    If a password contains an `@` or `/` that is not encoded, the driver would take a part of it for the host or the database and
    show that in its message.
    """
    place = url.partition("://")[2].partition("?")[0]
    before_path, slash, path = place.partition("/")
    if before_path.count("@") <= 1 and "@" not in slash + path:
        with suppress(psycopg.Error):
            return conninfo.conninfo_to_dict(url)
    raise psycopg.ProgrammingError(_UNREADABLE_ADDRESS)
