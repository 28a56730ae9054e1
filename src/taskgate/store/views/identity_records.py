"""The view of a store that keeps identity records (`ports.identity_store`)."""

from __future__ import annotations

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.identity_store import IdentityRecord
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.locks import Locks
from taskgate.store.operations import identity_records
from taskgate.store.transaction import Transaction
from taskgate.store.views.base import StoreView


class IdentityView(StoreView):
    async def keep_identity_record(
        self, record: IdentityRecord, entry: AuditEntry | None = None, *, announce: bool = False
    ) -> None:
        await self._write_or_fault(
            lambda tx: identity_records.keep_record(tx, record, entry, announce=announce),
            identity_locks(record.principal),
        )

    def note_identity_record(self, record: IdentityRecord, *, announce: bool = False) -> None:
        def write(tx: Transaction) -> None:
            identity_records.keep_record(tx, record, None, announce=announce)

        self._defer(DeferredWrite(write, lambda: None, identity_locks(record.principal)))

    async def forget_identity_record(self, kind: str, name: str, entry: AuditEntry | None = None) -> bool:
        return await self._write_or_fault(
            lambda tx: identity_records.forget_record(tx, kind, name, entry), identity_locks(name)
        )

    async def forget_identity_records_of(self, kind: str, principal: str, entry: AuditEntry | None = None) -> int:
        return await self._write_or_fault(
            lambda tx: identity_records.forget_records_of(tx, kind, principal, entry), identity_locks(principal)
        )

    async def find_identity_record(self, kind: str, name: str) -> IdentityRecord | None:
        return await self._read(lambda reader: reader.identity_record(kind, name))

    async def identity_records(self, kind: str) -> tuple[IdentityRecord, ...]:
        return await self._read(lambda reader: reader.identity_records(kind))


def identity_locks(name: str) -> Locks:
    return Locks(names=(f"identity:{name}",))
