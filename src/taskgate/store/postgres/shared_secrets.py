"""Secrets that all gateways of a store share.

The first gateway stores a value and all others use it. A secret that an operator sets replaces the stored one. With `store.key`
they are encrypted like the rest of the store, including those stored in plain text or under an older key before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psycopg

from taskgate.store.postgres.connection import connect, reason, refused, shown_url
from taskgate.store.postgres.inspection import migrate
from taskgate.store.postgres.statements import SQL
from taskgate.store.sealing import Sealing


def find_secret(url: str, name: str, sealing: Sealing) -> bytes | None:
    """Return a secret of the store's gateways, or None if no gateway has started yet. Raises GatewayFault."""
    try:
        with connect(url, "taskgate check") as connection:
            row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
            return None if row is None else sealing.open(bytes(row[0]), name)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def share_secrets(
    url: str, ours: Mapping[str, bytes], sealing: Sealing, newer: Callable[[bytes, bytes], bool] | None = None
) -> dict[str, bytes]:
    """Store secrets that are missing and return the values that all gateways use.

    `newer` returns whether our value replaces the stored one. Blocks; called before the gateway serves. Raises GatewayFault.
    """
    try:
        with connect(url, "taskgate start") as connection:
            migrate(connection)
            found: dict[str, bytes] = {}
            for name, value in ours.items():
                connection.execute(SQL["keep"], {"name": name, "value": sealing.seal(value, name)})
                row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
                assert row is not None
                kept = bytes(row[0])
                before = sealing.open(kept, name)
                found[name] = value if newer is not None and newer(value, before) else before
                if found[name] != before or not sealing.is_current(kept):
                    sealed = sealing.seal(found[name], name)
                    connection.execute(SQL["keep_instead"], {"name": name, "value": sealed, "before": kept})
            return found
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error
