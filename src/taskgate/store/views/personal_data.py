"""The view of a store that lists and erases the data of one person (`ports.personal_data_store`)."""

from __future__ import annotations

from functools import partial

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.identity_store import IdentityRecord
from taskgate.ports.personal_data_store import Erased, Unfinished
from taskgate.store.locks import Locks
from taskgate.store.operations import erasure, history
from taskgate.store.views.base import StoreView
from taskgate.store.views.identity_records import identity_locks


class PersonalDataView(StoreView):
    async def identity_records_of(self, principal: str) -> tuple[IdentityRecord, ...]:
        return await self._read(lambda reader: reader.identity_records_of(principal))

    async def tasks_of(self, principal: str, after: str = "", limit: int = 50) -> tuple[str, ...]:
        return await self._read(lambda reader: reader.tasks_of(principal, after, limit))

    async def erase(self, principal: str, kept_records: str, entry: AuditEntry) -> Erased | Unfinished:
        locks = identity_locks(principal)
        if open_ids := await self._write_or_fault(lambda tx: erasure.unfinished_of(tx, principal), locks):
            return Unfinished(open_ids)
        tasks = await self._erase_tasks(principal)
        calls = await self._erase_recorded_calls(principal)
        rows = await self._erase_history(principal)
        erased = await self._write_or_fault(
            lambda tx: erasure.erase_other_data(
                tx, principal, Erased(tasks=tasks, recorded_calls=calls, history=rows), kept_records, entry
            ),
            locks,
        )
        self.known_grants = tuple(grant for grant in self.known_grants if grant.principal != principal)
        await self._engine.overwrite_deleted()
        return erased

    async def _erase_tasks(self, principal: str) -> int:
        total = 0
        while True:
            count, spills = await self._write_or_fault(
                lambda tx: erasure.erase_tasks(tx, principal), Locks(callers=(principal,))
            )
            await self._engine.large_results.remove(spills)
            total += count
            if count < erasure.TASKS_PER_STEP:
                return total

    async def _erase_history(self, principal: str) -> int:
        total = 0
        while True:
            count = await self._write_or_fault(lambda tx: history.erase_rows(tx, principal))
            total += count
            if count < history.ROWS_PER_PORTION:
                return total

    async def _erase_recorded_calls(self, principal: str) -> int:
        total, after = 0, 0
        while True:
            count, more = await self._write_or_fault(
                partial(erasure.erase_recorded_calls, principal=principal, after=after)
            )
            total += count
            if more is None:
                return total
            after = more
