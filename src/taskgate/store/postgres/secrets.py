"""Secrets that all gateways of a store share: whoever comes first gives the value, and everybody gets that one.

Where `store.key` is given they are encrypted like what the store keeps, also those that stood there plainly or under an older key.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from taskgate.store.postgres.connection import connect, migrate, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL
from taskgate.store.sealing import Sealing


def known(url: str, name: str, sealing: Sealing) -> bytes | None:
    """A secret as the gateways of this store have it; None if none has started yet. Raises GatewayFault."""
    try:
        with connect(url, "taskgate check") as connection:
            row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
            return None if row is None else sealing.open(bytes(row[0]), name)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def shared(url: str, ours: Mapping[str, bytes], sealing: Sealing) -> dict[str, bytes]:
    """Raises GatewayFault. Blocks; called before serving."""
    try:
        with connect(url, "taskgate start") as connection:
            migrate(connection)
            found: dict[str, bytes] = {}
            for name, value in ours.items():
                connection.execute(SQL["keep"], {"name": name, "value": sealing.seal(value, name)})
                row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
                assert row is not None
                kept = bytes(row[0])
                found[name] = sealing.open(kept, name)
                if not sealing.is_current(kept):
                    sealed = sealing.seal(found[name], name)
                    connection.execute(SQL["keep_instead"], {"name": name, "value": sealed, "before": kept})
            return found
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error
