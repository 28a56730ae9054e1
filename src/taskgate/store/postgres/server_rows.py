"""Servers that callers added, shared by all gateways of a store (`ports.server_store`)."""

from __future__ import annotations

from taskgate.ports.server_store import KeptServer
from taskgate.ports.topics import SERVERS
from taskgate.store.locks import Locks
from taskgate.store.transaction import Transaction
from taskgate.store.views.base import StoreView


class ServerView(StoreView):
    async def keep_server(self, server: KeptServer) -> bool:
        def write(tx: Transaction) -> bool:
            kept = tx.run("keep_server", name=server.name, scope=server.scope, body=server.body).rowcount == 1
            if kept:
                tx.announce(SERVERS, server.name)
            return kept

        return await self._write_or_fault(write, _server_locks(server.name))

    async def forget_server(self, name: str) -> bool:
        def write(tx: Transaction) -> bool:
            gone = tx.run("forget_server", name=name).rowcount == 1
            if gone:
                tx.announce(SERVERS, name)
            return gone

        return await self._write_or_fault(write, _server_locks(name))

    async def kept_servers(self) -> tuple[KeptServer, ...]:
        return await self._read(lambda reader: tuple(KeptServer(*row) for row in reader.rows_of("kept_servers")))


def _server_locks(name: str) -> Locks:
    return Locks(names=(f"server:{name}",))
