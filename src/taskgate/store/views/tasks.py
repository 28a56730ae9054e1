"""The view of a store that keeps tasks (`ports.task_store`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from taskgate import clock
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import GatewayFault
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Dispatched, Noted, ResultReceived, TransitionEvent, apply
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store_answers import (
    Accepting,
    Advancing,
    Change,
    Due,
    Intended,
    Intending,
    Outdated,
    Recovered,
    Swept,
    TaskFilter,
    TaskPage,
    TaskQuestion,
)
from taskgate.ports.task_store import NO_LIMITS, AcceptLimits, Decide, LastLook
from taskgate.ports.topics import GRANTS
from taskgate.store.operations import tasks
from taskgate.store.operations.approvals import standing_grants
from taskgate.store.operations.upkeep import (
    TASKS_AT_ONCE,
    claim,
    expire,
    forget,
    forget_owners,
    forget_streams,
    keep,
    recover,
)
from taskgate.store.transaction import Locks, Transaction, tenants_of
from taskgate.store.views.base import Engine, LatestWins, StoreView

_COUNT_GOOD_S: Final = 1.0
_BETWEEN_PORTIONS_S: Final = 0.01
LARGE_RESULT: Final = 1 << 20
"""Longer results are kept outside of the rows."""


class TaskView(StoreView):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        # Progress that has not been written yet, by task; readers see it through `get`.
        self._notes: LatestWins[Noted] = LatestWins(self._defer, tasks.write_note, _of_task)
        self._open_count = (0, float("-inf"))
        self._known_revisions: dict[str, int] = {}

    async def accept(
        self,
        draft: Task,
        *,
        sent: AlreadySent | None = None,
        approval: ApprovalRequest | None = None,
        key: str | None = None,
        limits: AcceptLimits = NO_LIMITS,
        audit: AuditEntry | None = None,
        joins: bool = False,
    ) -> Accepting:
        if sent is not None and approval is not None:
            raise ValueError("a call that is already out cannot wait for an approval")
        return await self._write(
            lambda tx: tasks.accept(
                tx, draft, sent=sent, approval=approval, key=key, limits=limits, audit=audit, joins=joins
            ),
            _of_draft(draft, approval, key, limits),
            lambda answer: (lambda tx: tasks.take_back(tx, draft, key)) if isinstance(answer, Change) else None,
        )

    async def intend(
        self,
        task_id: str,
        *,
        byte_hash: str,
        upstream: str,
        message: str | None = None,
        look: LastLook,
        audit: AuditEntry | None = None,
    ) -> Intending:
        def operation(tx: Transaction) -> Intending:
            if tx.is_shared and (outdated := self._brought_up_to_date(tx)):
                return Outdated(outdated)
            return tasks.intend(
                tx, task_id, byte_hash=byte_hash, upstream=upstream, message=message, look=look, audit=audit
            )

        if not self._engine.may_send():
            raise _unsure()
        answer = await self._write(operation, _of_task(task_id))
        # The commit may have taken so long that somebody else runs it by now: then nothing goes out, whatever was written.
        if isinstance(answer, Intended) and not self._engine.may_send():
            raise _unsure()
        return answer

    def _brought_up_to_date(self, tx: Transaction) -> tuple[str, ...]:
        """Grants are read again if they changed; of everything else in memory, what another gateway has changed meanwhile."""
        present, known = tx.revisions(), self._known_revisions
        if present.get(GRANTS, 0) != known.get(GRANTS):
            self.known_grants = standing_grants(tx)
        return tuple(topic for topic in known if topic != GRANTS and present.get(topic, 0) > known[topic])

    async def read_revisions(self) -> Mapping[str, int]:
        return await self._read(lambda reader: reader.revisions())

    def now_known(self, topic: str, revision: int) -> None:
        self._known_revisions[topic] = revision

    async def advance(
        self,
        task_id: str,
        event: TransitionEvent,
        *,
        questions: Sequence[TaskQuestion] = (),
        answers: Mapping[str, bytes] | None = None,
        audit: AuditEntry | None = None,
    ) -> Advancing:
        if isinstance(event, Dispatched):
            raise ValueError("a dispatch is written by `intend`, with its recheck")
        spill = await self._spilled(task_id, event)
        # If this wait is broken off, the commit may still come, so the bytes stay; if none comes, the sweep removes them.
        answer = await self._write(
            lambda tx: tasks.advance(
                tx, task_id, event, questions=questions, answers=answers, audit=audit, spill=spill
            ),
            _of_task(task_id),
        )
        if spill is not None and not isinstance(answer, Change):
            await self._engine.large_results.remove([spill])
        return answer

    async def _spilled(self, task_id: str, event: TransitionEvent) -> str | None:
        """Large result bytes are durable before the transaction that names them begins."""
        if not isinstance(event, ResultReceived) or len(event.body) <= LARGE_RESULT:
            return None
        sealed = await asyncio.to_thread(self._engine.sealing.seal, event.body, task_id)
        return await self._engine.large_results.write(task_id, sealed)

    def note(self, task_id: str, noted: Noted) -> None:
        before = self._notes.peek(task_id) or noted
        merged = Noted(
            message=noted.message if noted.message is not None else before.message,
            progress=noted.progress if noted.progress is not None else before.progress,
            total=noted.total if noted.total is not None else before.total,
        )
        self._notes.put(task_id, merged)

    async def told_upstream(self, task_id: str) -> None:
        await self._write(lambda tx: tasks.told_upstream(tx, task_id), _of_task(task_id))

    async def get(self, task_id: str, *, also_gone: bool = False) -> Task | None:
        now = self.now_ms()
        task = await self._read(lambda reader: reader.task(task_id, now, also_gone=also_gone))
        noted = self._notes.peek(task_id)
        if task is None or noted is None:
            return task
        shown = apply(task, noted, max(now, task.updated_ms))
        return replace(shown, revision=task.revision) if isinstance(shown, Task) else task

    async def result_bytes(self, task_id: str) -> bytes | None:
        now = self.now_ms()
        found = await self._read(lambda reader: reader.outcome(task_id, now))
        if found is None:
            return None
        body, spill = found
        if spill is None:
            return body
        return await asyncio.to_thread(self._engine.sealing.open, await self._engine.large_results.read(spill), task_id)

    async def page(
        self,
        caller: str | None,
        *,
        after: str | None = None,
        limit: int = 50,
        server: str | None = None,
        states: frozenset[TaskState] | None = None,
        also_gone: bool = False,
        arguments_up_to: int = 0,
    ) -> TaskPage:
        now = self.now_ms()
        return await self._read(
            lambda reader: reader.page(
                caller,
                after=after,
                limit=limit,
                server=server,
                states=states,
                also_gone=also_gone,
                arguments_up_to=arguments_up_to,
                now_ms=now,
            )
        )

    async def find_tasks(self, wanted: TaskFilter, *, after: str | None = None, limit: int = 50) -> TaskPage:
        now = self.now_ms()
        return await self._read(lambda reader: reader.find_tasks(wanted, after, limit, now))

    async def ended_badly(self, wanted: TaskFilter, since_ms: int, limit: int) -> tuple[Task, ...]:
        now = self.now_ms()
        return await self._read(lambda reader: reader.ended_badly(wanted, since_ms, limit, now))

    async def task_of_key(self, principal: str, key: str) -> str | None:
        since = self.now_ms() - tasks.KEY_GOOD_MS
        return await self._read(lambda reader: reader.task_of_key(principal, key, since))

    async def open_count(self, caller: str | None = None) -> int:
        if caller is not None:
            return await self._read(lambda reader: reader.open_count(caller))
        # Asked for with every poll to set the pace of polling; a second old is good enough for that.
        count, at = self._open_count
        if clock.monotonic() - at > _COUNT_GOOD_S:
            count = await self._read(lambda reader: reader.open_count(None))
            self._open_count = (count, clock.monotonic())
        return count

    async def questions(self, task_id: str, *, answered: bool = False) -> tuple[TaskQuestion, ...]:
        return await self._read(lambda reader: reader.questions(task_id, answered=answered))

    async def due(self, limit: int = 500) -> Due:
        now = self.now_ms()
        return await self._read(lambda reader: reader.due(now, limit))

    async def sweep(self, portions: int = 1) -> Swept:
        now, most = self.now_ms(), portions * TASKS_AT_ONCE
        found = await self._read(lambda reader: reader.expiring(now, most))
        parts = [found[start : start + TASKS_AT_ONCE] for start in range(0, len(found), TASKS_AT_ONCE)]
        # Together, so that they share a commit; the writer lets other work have its turn between them.
        expired, swept = await asyncio.gather(
            asyncio.gather(*map(self._expire, parts)),
            asyncio.gather(*(self._write_or_fault(forget) for _ in range(portions))),
        )
        gone = tuple(task for part in expired for task in part)
        return Swept(
            tasks=sum(one.tasks for one in swept) + len(gone),
            expired=gone,
            events=sum(one.events for one in swept),
            keys=sum(one.keys for one in swept),
            approvals=sum(one.approvals for one in swept),
            more=swept[-1].more or len(found) == most,
        )

    async def _expire(self, found: Sequence[tuple[Task, str | None]]) -> tuple[Task, ...]:
        if not found:
            return ()
        tasks_found = [task for task, _ in found]
        # Known beforehand, so that two gateways that tell several callers never wait for each other in a circle.
        streams = tuple({task.conversation_key.stream for task in tasks_found})
        expired = await self._write_or_fault(lambda tx: expire(tx, tasks_found), Locks(callers=streams))
        ours = {task.id for task in expired}
        await self._engine.large_results.remove([name for task, name in found if name is not None and task.id in ours])
        return expired

    async def sweep_leftovers(self) -> int:
        after: str | None = ""
        while after is not None:
            after = await self._write_or_fault(partial(forget_streams, after=after))
            await clock.sleep(_BETWEEN_PORTIONS_S)
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

    async def take(self, task_id: str) -> Task | None:
        taken = await self._write(lambda tx: tasks.take(tx, task_id), _of_task(task_id))
        return taken if isinstance(taken, Task) else None

    async def claimed(self, after: str = "", limit: int = 500) -> tuple[Task, ...]:
        ours = self.ownership
        return await self._read(lambda reader: reader.claimed(ours, after, limit))

    async def keep(self, name: str, value: bytes) -> bytes:
        return await self._write_or_fault(lambda tx: keep(tx, name, value), Locks(names=(f"keep:{name}",)))


def _of_task(task_id: str) -> Locks:
    return Locks(tasks=(task_id,), reads=(task_id,))


def _of_draft(draft: Task, approval: ApprovalRequest | None, key: str | None, within: AcceptLimits) -> Locks:
    limits: tuple[str, ...] = (draft.limited_as or draft.caller,)
    if approval is not None and approval.counted_as not in limits:
        limits += (approval.counted_as,)
    if within.open_tasks_of_tenant is not None or (approval is not None and within.pending.per_tenant is not None):
        limits += tenants_of(limits)
    names = (f"key:{draft.principal}\n{key}",) if key is not None else ()
    return Locks(tasks=(draft.id,), callers=(draft.caller,), limits=limits, names=names)


def _unsure() -> GatewayFault:
    """Others may have taken us for dead: whether they have is known when the lease has been renewed."""
    return GatewayFault(
        "store_unavailable", "The lease of this gateway was not renewed in time; nothing is sent before it is."
    )
