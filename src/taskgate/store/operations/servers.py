"""Servers that callers added, where several gateways share the store. Without others a gateway keeps them in memory."""

from __future__ import annotations

import msgspec

from taskgate.ports.topics import SERVERS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction


class KeptServer(msgspec.Struct, frozen=True):
    """A server that a caller added. It is visible in `scope`."""

    name: str
    scope: str
    body: bytes


class KeepServer(Operation[bool], frozen=True):
    """Store a server; return False if there is one with this name."""

    server: KeptServer

    @property
    def locks(self) -> Locks:
        return _server_locks(self.server.name)

    def run(self, tx: Transaction) -> bool:
        server = self.server
        kept = tx.run("keep_server", name=server.name, scope=server.scope, body=server.body).rowcount == 1
        if kept:
            tx.announce(SERVERS, server.name)
        return kept


class ForgetServer(Operation[bool], frozen=True):
    """Delete a server; return whether there was one."""

    name: str

    @property
    def locks(self) -> Locks:
        return _server_locks(self.name)

    def run(self, tx: Transaction) -> bool:
        gone = tx.run("forget_server", name=self.name).rowcount == 1
        if gone:
            tx.announce(SERVERS, self.name)
        return gone


class KeptServers(Query[tuple[KeptServer, ...]], frozen=True):
    def run(self, reader: Reader) -> tuple[KeptServer, ...]:
        return tuple(KeptServer(*row) for row in reader.run("kept_servers"))


def _server_locks(name: str) -> Locks:
    return Locks(names=(f"server:{name}",))
