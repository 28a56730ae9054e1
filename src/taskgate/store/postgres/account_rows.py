"""Accounts at servers as rows that all gateways of a store share. What they hold is encrypted by whoever uses them.

Asked a few times an hour (a login, a token that ends), so each question has a connection of its own. Every method blocks and raises
GatewayFault where the database cannot be reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from taskgate import clock
from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL


class PostgresRows:
    """Implements the port `AccountRows`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, key: str) -> bytes | None:
        return self._value("account", {"name": key, "now": clock.wall()})

    def put(self, key: str, value: bytes, expires_at: float | None = None) -> None:
        with self._connected() as connection:
            connection.execute(SQL["drop_old_accounts"], {"now": clock.wall()})
            connection.execute(SQL["keep_account"], {"name": key, "value": value, "expires_at": expires_at})

    def take(self, key: str) -> bytes | None:
        return self._value("take_account", {"name": key, "now": clock.wall()})

    def listed(self, prefix: str) -> dict[str, bytes]:
        with self._connected() as connection:
            found = connection.cursor(binary=True).execute(SQL["accounts"], {"prefix": prefix, "now": clock.wall()})
            return {name: bytes(value) for name, value in found.fetchall()}

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        with self._connected() as connection:
            given = {"name": key, "owner": owner, "seconds": seconds}
            return connection.execute(SQL["claim_account"], given).fetchone() is not None

    def release(self, key: str, owner: str) -> None:
        with self._connected() as connection:
            connection.execute(SQL["release_account"], {"name": key, "owner": owner})

    def _value(self, statement: str, given: dict[str, Any]) -> bytes | None:
        with self._connected() as connection:
            row = connection.cursor(binary=True).execute(SQL[statement], given).fetchone()
            return bytes(row[0]) if row is not None else None

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with connect(self._url, "taskgate accounts") as connection:
                yield connection
        except psycopg.Error as error:
            raise refused(f"{shown_url(self._url)}: {reason(error)}.") from error
