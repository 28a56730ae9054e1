"""Takeover of tasks, and deletion of what is no longer retained.

Deletion works in small portions, because on SQLite it runs on the event loop between the writes of calls, and on PostgreSQL calls
may share its transaction. `SweepResult.more` is set when another portion is due.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final, NamedTuple

from msgspec.structs import replace

from taskgate import clock
from taskgate.core.tasks.deadlines import SHOWN_AS_EXPIRED_MS
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.task_events import TaskEvent, event_data
from taskgate.core.tasks.transition import TransitionEvent, apply
from taskgate.ports.store import Store
from taskgate.ports.store_answers import Due, Recovered, SweepResult
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.operations import approvals
from taskgate.store.operations.events import AppendEvent
from taskgate.store.operations.scripts import forget_children
from taskgate.store.operations.task_changes import end_tasks
from taskgate.store.operations.task_rows import task_from
from taskgate.store.operations.tasks import KEY_VALID_MS
from taskgate.store.operations.usage import ROWS_PER_PORTION
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

TASKS_PER_PORTION: Final = 64
STREAMS_PER_PORTION: Final = 1_000
KEPT_STREAMS_MS: Final = 24 * 3_600_000
KEPT_APPROVALS_MS: Final = 30 * 24 * 3_600_000
KEPT_OWNERS_MS: Final = 24 * 3_600_000
_PAUSE_BETWEEN_PORTIONS_S: Final = 0.01

Decide = Callable[[Task, int], TransitionEvent | None]
"""Returns the event that ends a task that was taken over, given the store's time; None if it continues. A pure function."""


class FindDue(Query[Due], frozen=True):
    limit: int = 500

    def run(self, reader: Reader) -> Due:
        values = {"now_ms": reader.now_ms, "limit": self.limit}
        statements = ("due_approvals", "due_executions", "due_holds")
        return Due(*(tuple(row[0] for row in reader.run(name, **values)) for name in statements))


class Claim(Operation[tuple[str, ...]], frozen=True):
    """Take over open tasks of dead owners and of this gateway's previous start, with its fence; return the ids of those that need a
    decision by `recover`. The adapter defines which owners are dead. Limited per call; call again while it returns some."""

    def run(self, tx: Transaction) -> tuple[str, ...]:
        ours = tx.ownership
        dead = json.dumps([owner for (owner,) in tx.run("dead_owners", owner=ours.owner)])
        tx.run("retire_owners", owners=dead)
        claimed = tx.run("claim_tasks", owner=ours.owner, fence=ours.fence, owners=dead)
        return tuple(sorted(task_id for (task_id,) in claimed.fetchall()))


class ClaimedIds(Query[list[str]], frozen=True):
    """The ids of this gateway's tasks that are open, or whose upstream must still be notified of a cancellation, in order."""

    after: str = ""
    limit: int = 500

    def run(self, reader: Reader) -> list[str]:
        ours = reader.ownership
        found = reader.run("claimed_ids", after=self.after, limit=self.limit, owner=ours.owner, fence=ours.fence)
        return [row[0] for row in found]


class ClaimedTasks(Query[tuple[Task, ...]], frozen=True):
    """The tasks of `ClaimedIds`."""

    after: str = ""
    limit: int = 500

    def run(self, reader: Reader) -> tuple[Task, ...]:
        ids = json.dumps(ClaimedIds(self.after, self.limit).run(reader))
        ours = reader.ownership
        found = reader.run("our_tasks", ids=ids, owner=ours.owner, fence=ours.fence)
        return tuple(readable("tasks", found, partial(task_from, reader.sealing)))


class Recover(Operation[Recovered], frozen=True):
    """End those of these tasks for which `decide` returns an end, as far as this gateway owns them, with few statements for all of
    them."""

    decide: Decide
    ids: Sequence[str]

    @property
    def locks(self) -> Locks:
        return Locks(tasks=tuple(self.ids))

    def run(self, tx: Transaction) -> Recovered:
        ours = tx.ownership
        found = tx.run("our_tasks", ids=json.dumps(list(self.ids)), owner=ours.owner, fence=ours.fence)
        moves: list[tuple[Task, Task]] = []
        left: list[Task] = []
        for task in readable("tasks", found.fetchall(), partial(task_from, tx.sealing)):
            event = None if task.state.is_terminal else self.decide(task, tx.now_ms)
            after = None if event is None else apply(task, event, tx.now_ms)
            if isinstance(after, Task) and after.state.is_terminal:
                moves.append((task, after))
            else:
                left.append(task)
        for _, after in moves:
            if after.approval_id is not None:
                approvals.withdraw(tx, after.approval_id)
        return Recovered(end_tasks(tx, moves) if moves else (), tuple(left), self.ids[-1])


async def recover(store: Store, decide: Decide, after: str = "", limit: int = 250) -> Recovered:
    """Process the next tasks of this gateway."""
    ids = await store.ask(ClaimedIds(after, limit))
    return await store.do(Recover(decide, ids)) if ids else Recovered()


async def sweep(store: Store, portions: int = 1) -> SweepResult:
    """Delete up to that many portions of what is no longer retained, each in a short write."""
    limit = portions * TASKS_PER_PORTION
    found = await store.ask(Expiring(limit))
    parts = [found[start : start + TASKS_PER_PORTION] for start in range(0, len(found), TASKS_PER_PORTION)]
    # Together, so that they share a commit; the writer runs other work between them.
    expired, swept = await asyncio.gather(
        asyncio.gather(*(store.do(Expire(part)) for part in parts)),
        asyncio.gather(*(store.do(ForgetExpired()) for _ in range(portions))),
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


class ExpiringTask(NamedTuple):
    task: Task
    large_result: str | None
    """The name of its long result."""


class Expiring(Query[list[ExpiringTask]], frozen=True):
    """Expired tasks of this gateway's share."""

    is_retention: ClassVar[bool] = True

    limit: int

    def run(self, reader: Reader) -> list[ExpiringTask]:
        found = reader.run("expiring_tasks", now_ms=reader.now_ms, limit=self.limit)
        return readable("tasks", found, lambda row: ExpiringTask(task_from(reader.sealing, row[:3]), row[3]))


class Expire(Operation[tuple[Task, ...]], frozen=True):
    """Delete results that have expired, with an event; the tasks stay visible as expired for a while.

    Returns the tasks that were expired here; another gateway may have expired some of them.
    """

    is_retention: ClassVar[bool] = True

    found: Sequence[ExpiringTask]

    @property
    def locks(self) -> Locks:
        # Locked beforehand, so that two gateways that append to several streams cannot deadlock.
        return Locks(callers=tuple({one.task.conversation_key.stream for one in self.found}))

    def run(self, tx: Transaction) -> tuple[Task, ...]:
        candidates = json.dumps([one.task.id for one in self.found])
        answer = tx.run("expire_tasks", ids=candidates, forget_at_ms=tx.now_ms + SHOWN_AS_EXPIRED_MS)
        ours = {task_id for (task_id,) in answer.fetchall()}
        expired = tuple(one.task for one in self.found if one.task.id in ours)
        if expired:
            ids = json.dumps([task.id for task in expired])
            # An idempotency key outlives its task and must still show whether the tool ran.
            tx.run("remember_executed", ids=ids)
            for statement in ("forget_outcomes", "forget_attempts", "forget_questions"):
                tx.run(statement, ids=ids)
            if scripts := [task for task in expired if task.script]:
                forget_children(tx, scripts)
        for task in expired:
            if task.state is not TaskState.EXPIRED:
                stream = task.conversation_key.stream
                AppendEvent(stream, TaskEvent.EXPIRED.value, task.server, event_data(task)).run(tx)
        return expired

    def discarded(self, answer: tuple[Task, ...]) -> Sequence[str]:
        ours = {task.id for task in answer}
        return [one.large_result for one in self.found if one.large_result is not None and one.task.id in ours]


class ForgetExpired(Operation[SweepResult], frozen=True):
    """Delete a portion of everything that is no longer retained."""

    is_retention: ClassVar[bool] = True

    def run(self, tx: Transaction) -> SweepResult:
        now = tx.now_ms
        swept = SweepResult(
            tasks=_forget_tasks(tx),
            events=tx.run("forget_events", before_ms=now - tx.state.events_for_ms, limit=ROWS_PER_PORTION).rowcount,
            keys=tx.run("forget_keys", before_ms=now - KEY_VALID_MS, limit=ROWS_PER_PORTION).rowcount,
            approvals=_forget_approvals(tx),
        )
        records = tx.run("forget_ended_identity_records", now_ms=now, limit=ROWS_PER_PORTION).rowcount
        tx.run("forget_grants", before_ms=now - KEPT_APPROVALS_MS)
        more = max(swept.events, swept.keys, records) == ROWS_PER_PORTION
        more = more or max(swept.tasks, swept.approvals) == TASKS_PER_PORTION
        return replace(swept, more=more)


def _forget_tasks(tx: Transaction) -> int:
    found = tx.run("forgettable_tasks", now_ms=tx.now_ms, limit=TASKS_PER_PORTION).fetchall()
    if found:
        ids = json.dumps([task_id for (task_id,) in found])
        for statement in ("forget_tasks", "forget_calls"):
            tx.run(statement, ids=ids)
    return len(found)


def _forget_approvals(tx: Transaction) -> int:
    before_ms = tx.now_ms - KEPT_APPROVALS_MS
    found = tx.run("forgettable_approvals", before_ms=before_ms, limit=TASKS_PER_PORTION).fetchall()
    if found:
        ids = json.dumps([approval_id for (approval_id,) in found])
        for statement in ("forget_approvals", "forget_receipts"):
            tx.run(statement, ids=ids)
    return len(found)


async def sweep_leftovers(store: Store) -> int:
    """Delete what is found only by a scan: event streams without events, and long results that no task refers to; return the number
    of the latter. Called rarely."""
    after: str | None = ""
    while after is not None:
        after = await store.do(ForgetStreams(after))
        await clock.sleep(_PAUSE_BETWEEN_PORTIONS_S)
    await store.do(ForgetOwners())
    return await store.remove_unused_results()


class ForgetStreams(Operation[str | None], frozen=True):
    """Delete streams without events among the next ones; return where to continue. In the order of names, because an index by age
    would have to be updated with every event."""

    is_retention: ClassVar[bool] = True

    after: str

    def run(self, tx: Transaction) -> str | None:
        found = tx.run("streams_after", after=self.after, limit=STREAMS_PER_PORTION).fetchall()
        before_ms = tx.now_ms - KEPT_STREAMS_MS
        # A damaged row may have a text where a time belongs.
        if old := [caller for caller, touched_ms in found if isinstance(touched_ms, int) and touched_ms <= before_ms]:
            tx.run("forget_streams", callers=json.dumps(old), before_ms=before_ms)
        return found[-1][0] if len(found) == STREAMS_PER_PORTION else None


class ForgetOwners(Operation[None], frozen=True):
    """Delete gateways that ended long ago and own nothing any more; each start of a gateway has its own name."""

    def run(self, tx: Transaction) -> None:
        if tx.is_shared:
            before_ms = tx.now_ms - KEPT_OWNERS_MS
            tx.run("forget_owners", owner=tx.ownership.owner, before_ms=before_ms)
            tx.run("forget_last_writes")
