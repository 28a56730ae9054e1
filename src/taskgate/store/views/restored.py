"""The view of a store whose database may have been restored from a backup (`ports.restored_store`)."""

from __future__ import annotations

from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.store_answers import Voided
from taskgate.store.locks import Locks
from taskgate.store.operations import restored
from taskgate.store.views.base import StoreView
from taskgate.store.views.engine import Engine

_LOCKS: Final = Locks(names=("restored",))


class RestoredView(StoreView):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._restore = engine.restore

    @property
    def is_restored(self) -> bool:
        return self._restore.is_restored

    async def accept_restored(self) -> Voided:
        voided = await self._write_or_fault(restored.void, _LOCKS)
        self.known_grants = ()
        self._restore.settle()
        return voided

    async def declare_restored(self, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: restored.declare(tx, entry), _LOCKS)
        self._restore.declare()

    async def trust_restored(self, entry: AuditEntry) -> bool:
        found = await self._write_or_fault(lambda tx: restored.trust(tx, entry), _LOCKS)
        self._restore.settle()
        return found
