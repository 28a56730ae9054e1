"""The view of a store that keeps temporary scopes (`ports.scope_store`)."""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.scope_store import KeptScope
from taskgate.store.locks import Locks
from taskgate.store.operations import scopes
from taskgate.store.views.base import StoreView


class ScopeView(StoreView):
    async def keep_scope(self, scope: KeptScope, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.keep_scope(tx, scope, entry), _scope_locks(scope.name))

    async def forget_scope(self, name: str, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.forget_scope(tx, name, entry), _scope_locks(name))

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        return await self._read(lambda reader: reader.scopes())


def _scope_locks(name: str) -> Locks:
    return Locks(names=(f"scope:{name}",))
