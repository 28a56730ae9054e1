"""The servers that callers added, as rows that all gateways of a store see (`ports.store.ServerStore`)."""

from __future__ import annotations

from taskgate.ports.replicas import SERVERS
from taskgate.ports.store import KeptServer
from taskgate.store.operations.transaction import Locks, Transaction
from taskgate.store.views.base import StoreView


class ServerView(StoreView):
    async def keep_server(self, server: KeptServer) -> bool:
        def write(tx: Transaction) -> bool:
            kept = tx.run("keep_server", name=server.name, scope=server.scope, body=server.body).rowcount == 1
            if kept:
                tx.announce(SERVERS, server.name)
            return kept

        return await self._write_or_fault(write, _of_server(server.name))

    async def forget_server(self, name: str) -> bool:
        def write(tx: Transaction) -> bool:
            gone = tx.run("forget_server", name=name).rowcount == 1
            if gone:
                tx.announce(SERVERS, name)
            return gone

        return await self._write_or_fault(write, _of_server(name))

    async def kept_servers(self) -> tuple[KeptServer, ...]:
        return await self._read(lambda reader: tuple(KeptServer(*row) for row in reader.rows_of("kept_servers")))


def _of_server(name: str) -> Locks:
    return Locks(names=(f"server:{name}",))
