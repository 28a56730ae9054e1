"""The view of a store that keeps the scopes handed over at run time (`ports.scope_store`)."""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.ports.store import KeptScope
from taskgate.store.operations import scopes
from taskgate.store.operations.locks import Locks
from taskgate.store.views.base import StoreView


class ScopeView(StoreView):
    async def keep_scope(self, scope: KeptScope, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.keep(tx, scope, entry), _of_scope(scope.name))

    async def forget_scope(self, name: str, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.forget(tx, name, entry), _of_scope(name))

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        return await self._read(lambda reader: reader.scopes())


def _of_scope(name: str) -> Locks:
    return Locks(names=(f"scope:{name}",))
