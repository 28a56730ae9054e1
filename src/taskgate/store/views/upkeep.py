"""The view of a store that takes over tasks and deletes what is no longer retained (`ports.task_store`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from taskgate import clock
from taskgate.core.tasks.task import Task
from taskgate.ports.store_answers import Due, Recovered, SweepResult
from taskgate.ports.task_store import Decide
from taskgate.store.locks import Locks
from taskgate.store.operations.upkeep import (
    TASKS_PER_PORTION,
    claim,
    expire,
    forget,
    forget_owners,
    forget_streams,
    keep,
    recover,
)
from taskgate.store.views.base import StoreView

_PAUSE_BETWEEN_PORTIONS_S: Final = 0.01


class UpkeepView(StoreView):
    async def due(self, limit: int = 500) -> Due:
        now = self.now_ms()
        return await self._read(lambda reader: reader.due(now, limit))

    async def sweep(self, portions: int = 1) -> SweepResult:
        now, limit = self.now_ms(), portions * TASKS_PER_PORTION
        counted = self._engine.settings.deletion.counted
        found = await self._read(counted(lambda reader: reader.expiring(now, limit)))
        parts = [found[start : start + TASKS_PER_PORTION] for start in range(0, len(found), TASKS_PER_PORTION)]
        # Together, so that they share a commit; the writer runs other work between them.
        expired, swept = await asyncio.gather(
            asyncio.gather(*map(self._expire, parts)),
            asyncio.gather(*(self._delete(forget) for _ in range(portions))),
        )
        gone = tuple(task for part in expired for task in part)
        return SweepResult(
            tasks=sum(one.tasks for one in swept) + len(gone),
            expired=gone,
            events=sum(one.events for one in swept),
            keys=sum(one.keys for one in swept),
            approvals=sum(one.approvals for one in swept),
            more=swept[-1].more or len(found) == limit,
        )

    async def _expire(self, found: Sequence[tuple[Task, str | None]]) -> tuple[Task, ...]:
        if not found:
            return ()
        tasks_found = [task for task, _ in found]
        # Locked beforehand, so that two gateways that append to several streams cannot deadlock.
        streams = tuple({task.conversation_key.stream for task in tasks_found})
        expired = await self._delete(lambda tx: expire(tx, tasks_found), Locks(callers=streams))
        ours = {task.id for task in expired}
        await self._engine.large_results.remove([name for task, name in found if name is not None and task.id in ours])
        return expired

    @property
    def deletion_cpu_s(self) -> float:
        return self._engine.settings.deletion.spent_s

    async def sweep_leftovers(self) -> int:
        after: str | None = ""
        while after is not None:
            after = await self._delete(partial(forget_streams, after=after))
            await clock.sleep(_PAUSE_BETWEEN_PORTIONS_S)
        await self._write_or_fault(forget_owners)
        return await self._engine.large_results.remove_orphans()

    async def claim(self) -> tuple[str, ...]:
        return await self._write_or_fault(claim)

    async def recover(self, decide: Decide, after: str = "", limit: int = 250) -> Recovered:
        ours = self.ownership
        ids = await self._read(lambda reader: reader.claimed_ids(ours, after, limit))
        return await self.recover_these(decide, ids)

    async def recover_these(self, decide: Decide, ids: Sequence[str]) -> Recovered:
        if not ids:
            return Recovered()
        done = await self._write_or_fault(lambda tx: recover(tx, decide, ids), Locks(tasks=tuple(ids)))
        return replace(done, last=ids[-1])

    async def claimed(self, after: str = "", limit: int = 500) -> tuple[Task, ...]:
        ours = self.ownership
        return await self._read(lambda reader: reader.claimed(ours, after, limit))

    async def keep(self, name: str, value: bytes) -> bytes:
        return await self._write_or_fault(lambda tx: keep(tx, name, value), Locks(names=(f"keep:{name}",)))
