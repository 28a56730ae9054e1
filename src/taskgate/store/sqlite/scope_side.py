"""The part of the SQLite store that keeps the scopes handed over at run time (`ports.scope_store`)."""

from __future__ import annotations

from taskgate.core.audit import Entry
from taskgate.ports.scope_store import KeptScope
from taskgate.store.sqlite.foundation import Foundation
from taskgate.store.sqlite.transaction import Transaction


class ScopeSide(Foundation):
    async def keep_scope(self, scope: KeptScope, entry: Entry) -> None:
        def write(tx: Transaction) -> None:
            tx.run("keep_scope", name=scope.name, expires_ms=scope.expires_ms, body=scope.body)
            tx.record(entry)

        await self._write_or_fault(write)

    async def forget_scope(self, name: str, entry: Entry) -> None:
        def write(tx: Transaction) -> None:
            tx.run("forget_scope", name=name)
            tx.record(entry)

        await self._write_or_fault(write)

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        return self._reader.scopes()
