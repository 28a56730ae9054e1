"""Accounts at upstream servers, as rows that all gateways of a store share. Their values are encrypted by the caller.

They are read a few times an hour (at a login, or when a token expires), so each access opens a connection of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from taskgate import clock
from taskgate.ports.topics import TOKENS
from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL


class PostgresAccountRows:
    """Implements the port `AccountRows`. Every method blocks, and raises GatewayFault if the database cannot be reached."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, key: str) -> bytes | None:
        return self._value("account", {"name": key})

    def put(self, key: str, value: bytes, expires_at: float | None = None) -> None:
        with self._connected() as connection:
            connection.execute(SQL["drop_old_accounts"])
            # Expiry uses the clock of the database: those of the machines may be hours apart.
            seconds = None if expires_at is None else expires_at - clock.wall()
            connection.execute(SQL["keep_account"], {"name": key, "value": value, "seconds": seconds})

    def replace(self, key: str, value: bytes) -> bool:
        with self._connected() as connection:
            return connection.execute(SQL["replace_account"], {"name": key, "value": value}).fetchone() is not None

    def take(self, key: str) -> bytes | None:
        return self._value("take_account", {"name": key})

    def remove(self, key: str) -> bool:
        """Other gateways notice the new revision when they renew their leases, and before they send a durable call."""
        with self._connected() as connection, connection.transaction():
            gone = connection.execute(SQL["take_account"], {"name": key}).fetchone() is not None
            if gone:
                connection.execute(SQL["bump_revisions"], {"topics": [TOKENS]})
            return gone

    def listed(self, prefix: str) -> dict[str, bytes]:
        with self._connected() as connection:
            found = connection.cursor(binary=True).execute(SQL["accounts"], {"prefix": prefix})
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
