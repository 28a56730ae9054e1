"""The view of a store that keeps scopes handed over at run time, records of identities, and all of one person (`ports.store`)."""

from __future__ import annotations

from functools import partial

from taskgate.core.audit import AuditEntry
from taskgate.ports.store import Erased, IdentityRecord, KeptScope, Unfinished
from taskgate.store.batch import DeferredWrite
from taskgate.store.operations import erase, scopes
from taskgate.store.operations.transaction import Locks, Transaction
from taskgate.store.views.base import StoreView


class ScopeView(StoreView):
    async def keep_scope(self, scope: KeptScope, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.keep(tx, scope, entry), _of_scope(scope.name))

    async def forget_scope(self, name: str, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.forget(tx, name, entry), _of_scope(name))

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        return await self._read(lambda reader: reader.scopes())

    async def keep_identity_record(
        self, record: IdentityRecord, entry: AuditEntry | None = None, *, announce: bool = False
    ) -> None:
        await self._write_or_fault(
            lambda tx: scopes.keep_identity(tx, record, entry, announce=announce), _of_identity(record.principal)
        )

    def note_identity_record(self, record: IdentityRecord, *, announce: bool = False) -> None:
        def write(tx: Transaction) -> None:
            scopes.keep_identity(tx, record, None, announce=announce)

        self._defer(DeferredWrite(write, lambda: None, _of_identity(record.principal)))

    async def forget_identity_record(self, kind: str, name: str, entry: AuditEntry | None = None) -> bool:
        return await self._write_or_fault(lambda tx: scopes.forget_identity(tx, kind, name, entry), _of_identity(name))

    async def forget_identity_records_of(self, kind: str, principal: str, entry: AuditEntry | None = None) -> int:
        return await self._write_or_fault(
            lambda tx: scopes.forget_identities_of(tx, kind, principal, entry), _of_identity(principal)
        )

    async def find_identity_record(self, kind: str, name: str) -> IdentityRecord | None:
        return await self._read(lambda reader: reader.identity_record(kind, name))

    async def identity_records(self, kind: str) -> tuple[IdentityRecord, ...]:
        return await self._read(lambda reader: reader.identity_records(kind))

    async def identity_records_of(self, principal: str) -> tuple[IdentityRecord, ...]:
        return await self._read(lambda reader: reader.identity_records_of(principal))

    async def tasks_of(self, principal: str, after: str = "", limit: int = 50) -> tuple[str, ...]:
        return await self._read(lambda reader: reader.tasks_of(principal, after, limit))

    async def erase(self, principal: str, kept_records: str, entry: AuditEntry) -> Erased | Unfinished:
        locks = _of_identity(principal)
        if open_ids := await self._write_or_fault(lambda tx: erase.unfinished(tx, principal), locks):
            return Unfinished(open_ids)
        tasks = await self._erase_tasks(principal)
        calls = await self._erase_recorded_calls(principal)
        erased = await self._write_or_fault(
            lambda tx: erase.the_rest(tx, principal, Erased(tasks=tasks, recorded_calls=calls), kept_records, entry),
            locks,
        )
        self.known_grants = tuple(grant for grant in self.known_grants if grant.principal != principal)
        await self._engine.overwrite_deleted()
        return erased

    async def _erase_tasks(self, principal: str) -> int:
        total = 0
        while True:
            count, spills = await self._write_or_fault(
                lambda tx: erase.tasks(tx, principal), Locks(callers=(principal,))
            )
            await self._engine.large_results.remove(spills)
            total += count
            if count < erase.TASKS_AT_ONCE:
                return total

    async def _erase_recorded_calls(self, principal: str) -> int:
        total, after = 0, 0
        while True:
            count, more = await self._write_or_fault(partial(erase.recorded_calls, principal=principal, after=after))
            total += count
            if more is None:
                return total
            after = more


def _of_identity(name: str) -> Locks:
    return Locks(names=(f"identity:{name}",))


def _of_scope(name: str) -> Locks:
    return Locks(names=(f"scope:{name}",))
