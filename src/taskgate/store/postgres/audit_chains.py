"""The audit log of a store with several gateways: one hash chain for each start of a gateway.

No gateway waits for the end of another one's chain. The first row of each chain names the ends of the others, so that truncating or
losing one of them is detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psycopg

from taskgate.core.audit.chain import Head, Row, beginning
from taskgate.ports.audit_log import AuditTime, ChainEnd
from taskgate.store.locks import Locks
from taskgate.store.operations.audit import audit_from, audit_time, record_audit
from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.statements import SQL
from taskgate.store.transaction import Transaction
from taskgate.store.views.log import LogView

_PAGE: Final = 2_000


class ChainView(LogView):
    @property
    def audit_chain(self) -> str:
        return self.ownership.owner

    async def begin_chain(self) -> None:
        """Starts are serialized, so that two gateways that start together do not both leave out the end of a chain."""

        def write(tx: Transaction) -> None:
            tx.run("put_chain", now_ms=tx.now_ms)
            heads = [Head(*row) for row in tx.run("unnamed_heads").fetchall()]
            record_audit(tx, beginning(self.audit_chain, heads))
            for head in heads:
                tx.run("head_named", other=head.chain_id, number=head.number)

        await self._write_or_fault(write, Locks(names=("audit chains",)))

    async def chain_ends(self) -> tuple[ChainEnd, ...]:
        found = await self._read(lambda reader: reader.rows_of("chain_ends"))
        ends = [(chain, began_ms, audit_time(*row)) for chain, began_ms, *row in found]
        return tuple(ChainEnd(chain, began_ms, last.number, last.at_ms) for chain, began_ms, last in ends)

    async def ended_chains(self) -> tuple[str, ...]:
        return await self._read(lambda reader: tuple(row[0] for row in reader.rows_of("ended_chains")))

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        of = chain or self.audit_chain
        found = await self._read(lambda reader: reader.rows_of("audit_of", of=of, number=after, limit=limit))
        return tuple(audit_from(*row) for row in found)

    async def audit_times(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[AuditTime, ...]:
        of = chain or self.audit_chain
        found = await self._read(lambda reader: reader.rows_of("audit_of", of=of, number=after, limit=limit))
        return tuple(audit_time(*row) for row in found)

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        of = chain or self.audit_chain

        def write(tx: Transaction) -> None:
            tx.run("cut_chain", of=of, cut=mark)
            tx.run("forget_audit_of", of=of, number=up_to)

        await self._delete(write, Locks(names=("audit chains",)))


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
