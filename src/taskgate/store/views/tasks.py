"""The view of a store that keeps tasks (`ports.task_store`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from taskgate import clock
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import GatewayFault
from taskgate.core.scripts.record import ReceivedOutcomes
from taskgate.core.tasks.origin import AlreadySent
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Attempt, Task
from taskgate.core.tasks.transition import Dispatched, Noted, ResultReceived, RoundAnswered, TransitionEvent, apply
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store_answers import (
    Accepting,
    Advancing,
    Change,
    Intended,
    Intending,
    Outdated,
    TaskFilter,
    TaskPage,
    TaskQuestion,
)
from taskgate.ports.task_store import NO_LIMITS, AcceptLimits, FinalRecheck
from taskgate.ports.topics import GRANTS
from taskgate.store.locks import Locks, tenants_of
from taskgate.store.operations import tasks
from taskgate.store.operations.grants import standing_grants
from taskgate.store.transaction import Transaction
from taskgate.store.views.base import StoreView
from taskgate.store.views.engine import Engine
from taskgate.store.views.latest_wins import LatestWins

_COUNT_VALID_S: Final = 1.0
LARGE_RESULT: Final = 1 << 20
"""Longer results are stored outside the rows."""


class TaskView(StoreView):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        # Progress that is not written yet, by task; `get` returns it.
        self._notes: LatestWins[Noted] = LatestWins(self._defer, tasks.write_note, _task_locks)
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
            raise ValueError("a call that was already sent cannot wait for an approval")

        def revert(answer: Any) -> Callable[[Transaction], None] | None:
            # A call that was sent runs whether or not somebody waits for its record.
            if sent is not None or not isinstance(answer, Change):
                return None
            return lambda tx: tasks.revert_accept(tx, draft, key)

        return await self._write(
            lambda tx: tasks.accept(
                tx, draft, sent=sent, approval=approval, key=key, limits=limits, audit=audit, joins=joins
            ),
            _draft_locks(draft, approval, key, limits),
            revert,
        )

    async def intend(
        self,
        task_id: str,
        *,
        byte_hash: str,
        upstream: str,
        message: str | None = None,
        recheck: FinalRecheck,
        audit: AuditEntry | None = None,
        answered: RoundAnswered | None = None,
    ) -> Intending:
        def operation(tx: Transaction) -> Intending:
            if tx.is_shared and (outdated := self._outdated_topics(tx)):
                return Outdated(outdated)
            return tasks.intend(
                tx,
                task_id,
                byte_hash=byte_hash,
                upstream=upstream,
                message=message,
                recheck=recheck,
                audit=audit,
                answered=answered,
            )

        if not self._engine.may_send():
            raise _lease_not_renewed()
        answer = await self._write(operation, _task_locks(task_id))
        # If the commit took so long that another gateway may run the task by now, nothing is sent, whatever was written.
        if isinstance(answer, Intended) and not self._engine.may_send():
            raise _lease_not_renewed()
        return answer

    def _outdated_topics(self, tx: Transaction) -> tuple[str, ...]:
        """Read the grants again if they changed, and return the other cached topics that another gateway has changed."""
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
        received: ReceivedOutcomes | None = None,
    ) -> Advancing:
        if isinstance(event, Dispatched):
            raise ValueError("a dispatch is written by `intend`, with its recheck")
        spill = await self._write_large_result(task_id, event)
        # A report that waits for the next commit would be written too late, if this ends the task.
        noted = self._notes.peek(task_id)
        # If this is cancelled, the commit may still succeed, so the bytes stay; if it does not, the sweep removes them.
        answer = await self._write(
            lambda tx: tasks.advance(
                tx,
                task_id,
                event,
                questions=questions,
                answers=answers,
                audit=audit,
                spill=spill,
                received=received,
                noted=noted,
            ),
            _task_locks(task_id),
        )
        if spill is not None and not isinstance(answer, Change):
            await self._engine.large_results.remove([spill])
        return answer

    async def _write_large_result(self, task_id: str, event: TransitionEvent) -> str | None:
        """Make a large result durable before the transaction that refers to it; return its name, None for other events."""
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

    async def cancel_delivered(self, task_id: str) -> None:
        await self._write(lambda tx: tasks.cancel_delivered(tx, task_id), _task_locks(task_id))

    async def get(self, task_id: str, *, include_expired: bool = False) -> Task | None:
        now = self.now_ms()
        task = await self._read(lambda reader: reader.task(task_id, now, include_expired=include_expired))
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
        include_expired: bool = False,
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
                include_expired=include_expired,
                arguments_up_to=arguments_up_to,
                now_ms=now,
            )
        )

    async def find_tasks(self, filters: TaskFilter, *, after: str | None = None, limit: int = 50) -> TaskPage:
        now = self.now_ms()
        # A search with few matches reads all open tasks, so it runs in a thread.
        return await self._engine.read_in_thread(lambda reader: reader.find_tasks(filters, after, limit, now))

    async def ended_badly(self, filters: TaskFilter, since_ms: int, limit: int) -> tuple[Task, ...]:
        now = self.now_ms()
        return await self._read(lambda reader: reader.ended_badly(filters, since_ms, limit, now))

    async def task_of_key(self, principal: str, key: str) -> str | None:
        since = self.now_ms() - tasks.KEY_VALID_MS
        return await self._read(lambda reader: reader.task_of_key(principal, key, since))

    async def open_count(self, caller: str | None = None) -> int:
        if caller is not None:
            return await self._read(lambda reader: reader.open_count(caller))
        # Every poll reads it for the poll interval, for which a value of the last second is accurate enough.
        count, at = self._open_count
        if clock.monotonic() - at > _COUNT_VALID_S:
            count = await self._read(lambda reader: reader.open_count(None))
            self._open_count = (count, clock.monotonic())
        return count

    async def questions(self, task_id: str, *, answered: bool = False) -> tuple[TaskQuestion, ...]:
        return await self._read(lambda reader: reader.questions(task_id, answered=answered))

    async def attempts(self, task_id: str, limit: int) -> tuple[Attempt, ...]:
        return await self._read(lambda reader: reader.attempts(task_id, limit))

    async def take(self, task_id: str) -> Task | None:
        taken = await self._write(lambda tx: tasks.take(tx, task_id), _task_locks(task_id))
        return taken if isinstance(taken, Task) else None

    async def hand_over(self, task_id: str, owner: str) -> bool:
        return bool(await self._write(lambda tx: tasks.hand_over(tx, task_id, owner), _task_locks(task_id)))


def _task_locks(task_id: str) -> Locks:
    return Locks(tasks=(task_id,), reads=(task_id,))


def _draft_locks(draft: Task, approval: ApprovalRequest | None, key: str | None, within: AcceptLimits) -> Locks:
    limits: tuple[str, ...] = (draft.limited_as or draft.caller,)
    if approval is not None and approval.counted_as not in limits:
        limits += (approval.counted_as,)
    if within.open_tasks_of_tenant is not None or (approval is not None and within.pending.per_tenant is not None):
        limits += tenants_of(limits)
    names = (f"key:{draft.principal}\n{key}",) if key is not None else ()
    return Locks(tasks=(draft.id,), callers=(draft.caller,), limits=limits, names=names)


def _lease_not_renewed() -> GatewayFault:
    """The error while other gateways may have declared this one dead. Whether they have is known after the next renewal of the
    lease.
    """
    return GatewayFault(
        "store_unavailable", "The lease of this gateway was not renewed in time; nothing is sent before it is."
    )
