"""Takeover of tasks, and deletion of what is no longer retained, each step in one transaction.

Deletion works in small portions, because on SQLite it runs on the event loop between the writes of calls, and on PostgreSQL calls
may share its transaction. `SweepResult.more` is set when another portion is due.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Final

from taskgate.core.tasks.deadlines import SHOWN_AS_EXPIRED_MS
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.task_events import TaskEvent, event_data
from taskgate.core.tasks.transition import apply
from taskgate.ports.store_answers import Recovered, SweepResult
from taskgate.ports.task_store import Decide
from taskgate.store.operations import approvals
from taskgate.store.operations.events import append_event
from taskgate.store.operations.scripts import forget_children
from taskgate.store.operations.task_changes import end_tasks
from taskgate.store.operations.task_rows import task_from
from taskgate.store.operations.tasks import KEY_VALID_MS
from taskgate.store.transaction import Transaction
from taskgate.telemetry.damaged_rows import readable

TASKS_PER_PORTION: Final = 64
ROWS_PER_PORTION: Final = 500
"""For tables with small rows that are only deleted."""
STREAMS_PER_PORTION: Final = 1_000
KEPT_STREAMS_MS: Final = 24 * 3_600_000
KEPT_APPROVALS_MS: Final = 30 * 24 * 3_600_000
KEPT_OWNERS_MS: Final = 24 * 3_600_000


def claim(tx: Transaction) -> tuple[str, ...]:
    """Take over the tasks of dead owners and of this gateway's previous start; the adapter defines which owners are dead."""
    ours = tx.ownership
    dead = json.dumps([owner for (owner,) in tx.run("dead_owners", owner=ours.owner)])
    tx.run("retire_owners", owners=dead)
    claimed = tx.run("claim_tasks", owner=ours.owner, fence=ours.fence, owners=dead)
    return tuple(sorted(task_id for (task_id,) in claimed.fetchall()))


def recover(tx: Transaction, decide: Decide, ids: Sequence[str]) -> Recovered:
    """End those of these tasks for which `decide` returns an end, with few statements for all of them."""
    ours = tx.ownership
    found = tx.run("our_tasks", ids=json.dumps(list(ids)), owner=ours.owner, fence=ours.fence)
    moves: list[tuple[Task, Task]] = []
    left: list[Task] = []
    for task in readable("tasks", found.fetchall(), partial(task_from, tx.sealing)):
        event = None if task.state.is_terminal else decide(task, tx.now_ms)
        after = None if event is None else apply(task, event, tx.now_ms)
        if isinstance(after, Task) and after.state.is_terminal:
            moves.append((task, after))
        else:
            left.append(task)
    for _, after in moves:
        if after.approval_id is not None:
            approvals.withdraw(tx, after.approval_id)
    return Recovered(end_tasks(tx, moves) if moves else (), tuple(left))


def expire(tx: Transaction, found: Sequence[Task]) -> tuple[Task, ...]:
    """Delete results that have expired, with an event; the tasks stay visible as expired for a while.

    Returns the tasks that were expired here; another gateway may have expired some of them.
    """
    candidates = json.dumps([task.id for task in found])
    answer = tx.run("expire_tasks", ids=candidates, forget_at_ms=tx.now_ms + SHOWN_AS_EXPIRED_MS)
    ours = {task_id for (task_id,) in answer.fetchall()}
    expired = tuple(task for task in found if task.id in ours)
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
            append_event(tx, task.conversation_key.stream, TaskEvent.EXPIRED.value, task.server, event_data(task))
    return expired


def forget(tx: Transaction) -> SweepResult:
    """Delete a portion of everything that is no longer retained."""
    now = tx.now_ms
    swept = SweepResult(
        tasks=_forget_tasks(tx),
        events=tx.run("forget_events", before_ms=now - tx.settings.events_for_ms, limit=ROWS_PER_PORTION).rowcount,
        keys=tx.run("forget_keys", before_ms=now - KEY_VALID_MS, limit=ROWS_PER_PORTION).rowcount,
        approvals=_forget_approvals(tx),
    )
    records = tx.run("forget_ended_identity_records", now_ms=now, limit=ROWS_PER_PORTION).rowcount
    tx.run("forget_grants", before_ms=now - KEPT_APPROVALS_MS)
    more = max(swept.events, swept.keys, records) == ROWS_PER_PORTION
    more = more or max(swept.tasks, swept.approvals) == TASKS_PER_PORTION
    return SweepResult(swept.tasks, (), swept.events, swept.keys, swept.approvals, more=more)


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


def forget_streams(tx: Transaction, after: str) -> str | None:
    """Delete streams without events among the next ones; return where to continue. In the order of names, because an index by
    age would have to be updated with every event."""
    found = tx.run("streams_after", after=after, limit=STREAMS_PER_PORTION).fetchall()
    before_ms = tx.now_ms - KEPT_STREAMS_MS
    # A damaged row may have a text where a time belongs.
    if old := [caller for caller, touched_ms in found if isinstance(touched_ms, int) and touched_ms <= before_ms]:
        tx.run("forget_streams", callers=json.dumps(old), before_ms=before_ms)
    return found[-1][0] if len(found) == STREAMS_PER_PORTION else None


def forget_owners(tx: Transaction) -> None:
    """Delete gateways that ended long ago and own nothing any more; each start of a gateway has its own name."""
    if tx.is_shared:
        before_ms = tx.now_ms - KEPT_OWNERS_MS
        tx.run("forget_owners", owner=tx.ownership.owner, before_ms=before_ms)
        tx.run("forget_last_writes")


def keep(tx: Transaction, name: str, value: bytes) -> bytes:
    """Store a value unless there is one; return the stored value. The first gateway wins."""
    tx.run("keep", name=name, value=value)
    kept: bytes = tx.run("kept", name=name).fetchone()[0]
    return kept
