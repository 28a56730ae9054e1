"""The audit log where several gateways write it: one chain for each gateway and start, so that nobody waits for the end of
somebody else's. The first row of each chain names the ends of the others, so that none can be cut or lost unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psycopg

from taskgate.core.audit import Head, Row, beginning
from taskgate.store.operations import audit, rows
from taskgate.store.operations.transaction import Locks, Transaction
from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL
from taskgate.store.views.logs import LogView

_PAGE: Final = 2_000


class ChainView(LogView):
    @property
    def audit_chain(self) -> str:
        return self.ownership.owner

    async def begin_chain(self) -> None:
        """Starts are one after the other, so that no end is left unnamed by two that look at once."""

        def write(tx: Transaction) -> None:
            tx.run("put_chain", now_ms=tx.now_ms)
            heads = [Head(*row) for row in tx.run("unnamed_heads").fetchall()]
            audit.record(tx, beginning(self.audit_chain, heads))
            for head in heads:
                tx.run("head_named", other=head.chain_id, number=head.number)

        await self._write_or_fault(write, Locks(names=("audit chains",)))

    async def ended_chains(self) -> tuple[str, ...]:
        return await self._read(lambda reader: tuple(row[0] for row in reader.rows_of("ended_chains")))

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        of = chain or self.audit_chain
        found = await self._read(lambda reader: reader.rows_of("audit_of", of=of, number=after, limit=limit))
        return tuple(rows.audit_from(*row) for row in found)

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        of = chain or self.audit_chain

        def write(tx: Transaction) -> None:
            tx.run("cut_chain", of=of, cut=mark)
            tx.run("forget_audit_of", of=of, number=up_to)

        await self._write_or_fault(write, Locks(names=("audit chains",)))


def read_chains(url: str) -> Iterator[tuple[str, bytes | None, Iterator[Row]]]:
    """Each chain with its signed cut and its rows, all as of one moment, also while gateways write. Raises GatewayFault."""
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
            read = rows.audit_from(*row)
            last = read.number
            yield read
        if not found:
            return
