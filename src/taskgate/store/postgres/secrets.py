"""Secrets that all gateways of a store share: whoever comes first gives the value, and everybody gets that one."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from taskgate.store.postgres.connection import connect, migrate, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL


def known(url: str, name: str) -> bytes | None:
    """A secret as the gateways of this store have it; None if none has started yet. Raises GatewayFault."""
    try:
        with connect(url, "taskgate check") as connection:
            row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
            return None if row is None else bytes(row[0])
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def shared(url: str, ours: Mapping[str, bytes]) -> dict[str, bytes]:
    """Raises GatewayFault. Blocks; called before serving."""
    try:
        with connect(url, "taskgate start") as connection:
            migrate(connection)
            found: dict[str, bytes] = {}
            for name, value in ours.items():
                connection.execute(SQL["keep"], {"name": name, "value": value})
                row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
                assert row is not None
                found[name] = row[0]
            return found
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error
