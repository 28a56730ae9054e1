"""The partitions of history, one for each day: created before the day begins, dropped when the whole day is too old.

Dropping a day takes no time and leaves no dead rows. Rows of days without a partition are in `history_other_days`, where they are
deleted in portions like all rows on SQLite.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import psycopg
from psycopg import sql

from taskgate.core.history.row import first_number
from taskgate.store.postgres.connection import Connection
from taskgate.store.postgres.statements import SQL
from taskgate.telemetry.logs import log

DAY_MS: Final = 86_400_000
AHEAD: Final = 2
"""Today and the days after it that have a partition."""
_PREFIX: Final = "history_day_"
_LOCK: Final = 7_236_410_387
_WITHIN: Final = "2s"
"""Maximum wait of a statement for the table; the next round retries."""


def day_name(at_ms: int) -> str:
    return _PREFIX + datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%d")


def maintain_days(connection: Connection, now_ms: int, keep_ms: int) -> None:
    """Create the partitions of today and the next days, and drop those that contain only rows that are too old."""
    kept = {name for (name,) in connection.execute(SQL["history_days"]).fetchall()}
    for start in range(now_ms // DAY_MS * DAY_MS, now_ms + AHEAD * DAY_MS, DAY_MS):
        if day_name(start) not in kept:
            bounds = sql.SQL("FOR VALUES FROM ({}) TO ({})").format(first_number(start), first_number(start + DAY_MS))
            name = sql.Identifier(day_name(start))
            _alter(connection, sql.SQL("CREATE TABLE IF NOT EXISTS {} PARTITION OF history {}").format(name, bounds))
    oldest = day_name(max(0, now_ms - max(keep_ms, 0)))
    for name_of_day in sorted(kept):
        if name_of_day.startswith(_PREFIX) and name_of_day < oldest:
            _alter(connection, sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(name_of_day)))


def _alter(connection: Connection, statement: sql.Composed) -> None:
    """Run a statement under a lock, so that only one gateway does, and with a short lock timeout, because calls write to the
    table.
    """
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [_WITHIN])
            connection.execute(statement)
    except psycopg.Error as error:
        # Rows of a day without a partition are stored all the same, and an old day is dropped in the next round.
        log.warning("a partition of history was not changed", why=str(error).splitlines()[0])
