"""The view of a store that keeps scripts (`ports.script_store`)."""

from __future__ import annotations

from collections.abc import Sequence

from taskgate.ports.script_store import ChildCall, ScriptCall, ScriptStep, Stepping, StoredScript
from taskgate.store.locks import Locks, tenants_of
from taskgate.store.operations import scripts
from taskgate.store.views.base import StoreView


class ScriptView(StoreView):
    async def step_script(self, task_id: str, step: ScriptStep, children: Sequence[ChildCall] = ()) -> Stepping:
        return await self._write(lambda tx: scripts.step(tx, task_id, step, children), _of_step(task_id, children))

    async def join_chain(self, task_id: str, earlier: Sequence[str]) -> str | None:
        first = earlier[0]
        return await self._write_or_fault(
            lambda tx: scripts.join_chain(tx, task_id, earlier), Locks(tasks=(first,), reads=(first,))
        )

    async def script(self, task_id: str) -> StoredScript | None:
        return await self._read(lambda reader: reader.script(task_id))

    async def script_calls(self, task_id: str, after: int = -1, limit: int = 1_000) -> tuple[ScriptCall, ...]:
        return await self._read(lambda reader: reader.script_calls(task_id, after, limit))

    async def asking_calls(self, task_id: str) -> tuple[str, ...]:
        return await self._read(lambda reader: reader.asking_calls(task_id))


def _of_step(task_id: str, children: Sequence[ChildCall]) -> Locks:
    held = [child.approval for child in children if child.approval is not None]
    limits = tuple(dict.fromkeys(approval.counted_as for approval in held))
    if any(child.limits.pending.per_tenant is not None for child in children):
        limits += tenants_of(limits)
    callers = tuple(dict.fromkeys(child.draft.caller for child in children))
    return Locks(
        tasks=(task_id, *(child.draft.id for child in children)), callers=callers, limits=limits, reads=(task_id,)
    )
