"""Read the audit chains of a store with several gateways, one for each start of a gateway, without opening the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psycopg

from taskgate.core.audit.chain import Row
from taskgate.store.operations.audit import audit_from
from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL

_PAGE: Final = 2_000


def read_chains(url: str) -> Iterator[tuple[str, bytes | None, Iterator[Row]]]:
    """Yield each chain with its signed cut and its rows, from one snapshot, even while gateways write. Raises GatewayFault."""
    try:
        with connect(url, "taskgate audit") as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for chain, cut in connection.cursor(binary=True).execute(SQL["audit_chains"]).fetchall():
                yield chain, cut, _rows_of(connection, chain)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def _rows_of(connection: Connection, chain: str) -> Iterator[Row]:
    last = 0
    while True:
        values = {"of": chain, "number": last, "limit": _PAGE}
        found = connection.cursor(binary=True).execute(SQL["audit_of"], values).fetchall()
        for row in found:
            read = audit_from(*row)
            last = read.number
            yield read
        if not found:
            return
