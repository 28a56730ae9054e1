"""What the store does for itself, each step inside one transaction: take over tasks, and forget what is past its time.

Forgetting goes in portions. A portion is small, because on SQLite it runs on the event loop between the writes of calls, and on
PostgreSQL calls may share its transaction. Whoever asks for one is told whether to ask again (`Swept.more`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from taskgate.core.tasks.deadlines import SHOWN_AS_EXPIRED_MS
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.task_events import TaskEvent, event_data
from taskgate.core.tasks.transition import apply
from taskgate.ports.store_answers import Recovered, Swept
from taskgate.ports.task_store import Decide
from taskgate.store.operations import approvals, rows
from taskgate.store.operations.rows import tell_event
from taskgate.store.operations.tasks import KEY_GOOD_MS
from taskgate.store.transaction import Transaction

TASKS_AT_ONCE: Final = 64
ROWS_AT_ONCE: Final = 500
"""Of tables whose rows are small and are only deleted."""
STREAMS_AT_ONCE: Final = 1_000
KEPT_STREAMS_MS: Final = 24 * 3_600_000
KEPT_APPROVALS_MS: Final = 30 * 24 * 3_600_000
KEPT_OWNERS_MS: Final = 24 * 3_600_000


def claim(tx: Transaction) -> tuple[str, ...]:
    """Take the tasks of owners that are dead, and of our own life before; the adapter knows who is dead."""
    ours = tx.ownership
    dead = json.dumps([owner for (owner,) in tx.run("dead_owners", owner=ours.owner)])
    tx.run("retire_owners", owners=dead)
    claimed = tx.run("claim_tasks", owner=ours.owner, fence=ours.fence, owners=dead)
    return tuple(sorted(task_id for (task_id,) in claimed.fetchall()))


def recover(tx: Transaction, decide: Decide, ids: Sequence[str]) -> Recovered:
    """End those of these tasks of ours that are to be ended, with few statements for all of them."""
    ours = tx.ownership
    found = tx.run("our_tasks", ids=json.dumps(list(ids)), owner=ours.owner, fence=ours.fence)
    moves: list[tuple[Task, Task]] = []
    left: list[Task] = []
    for row in found.fetchall():
        task = rows.task_from(tx.sealing, row)
        event = None if task.state.is_terminal else decide(task, tx.now_ms)
        after = None if event is None else apply(task, event, tx.now_ms)
        if isinstance(after, Task) and after.state.is_terminal:
            moves.append((task, after))
        else:
            left.append(task)
    for _, after in moves:
        if after.approval_id is not None:
            approvals.withdraw(tx, after.approval_id)
    return Recovered(rows.end_tasks(tx, moves) if moves else (), tuple(left))


def expire(tx: Transaction, found: Sequence[Task]) -> tuple[Task, ...]:
    """Results past their time go, with an event; the tasks can be seen as expired for a while.

    Gives those that were expired here: another gateway may have been faster.
    """
    ids = json.dumps([task.id for task in found])
    answer = tx.run("expire_tasks", ids=ids, forget_at_ms=tx.now_ms + SHOWN_AS_EXPIRED_MS)
    ours = {task_id for (task_id,) in answer.fetchall()}
    expired = tuple(task for task in found if task.id in ours)
    if expired:
        gone = json.dumps([task.id for task in expired])
        # An idempotency key outlives its task and must still be able to say whether the tool ran.
        tx.run("remember_executed", ids=gone)
        for part in ("forget_outcomes", "forget_attempts", "forget_questions"):
            tx.run(part, ids=gone)
    for task in expired:
        if task.state is not TaskState.EXPIRED:
            tell_event(tx, task.conversation_key.stream, TaskEvent.EXPIRED.value, task.server, event_data(task))
    return expired


def forget(tx: Transaction) -> Swept:
    """A portion of everything that nobody may ask for any more."""
    now = tx.now_ms
    swept = Swept(
        tasks=_forget_tasks(tx),
        events=tx.run("forget_events", before_ms=now - tx.kept_events.for_ms, limit=ROWS_AT_ONCE).rowcount,
        keys=tx.run("forget_keys", before_ms=now - KEY_GOOD_MS, limit=ROWS_AT_ONCE).rowcount,
        approvals=_forget_approvals(tx),
    )
    records = tx.run("forget_ended_identity_records", now_ms=now, limit=ROWS_AT_ONCE).rowcount
    tx.run("forget_grants", before_ms=now - KEPT_APPROVALS_MS)
    more = max(swept.events, swept.keys, records) == ROWS_AT_ONCE
    more = more or max(swept.tasks, swept.approvals) == TASKS_AT_ONCE
    return Swept(swept.tasks, (), swept.events, swept.keys, swept.approvals, more=more)


def _forget_tasks(tx: Transaction) -> int:
    found = tx.run("forgettable_tasks", now_ms=tx.now_ms, limit=TASKS_AT_ONCE).fetchall()
    if found:
        gone = json.dumps([task_id for (task_id,) in found])
        for part in ("forget_tasks", "forget_calls"):
            tx.run(part, ids=gone)
    return len(found)


def _forget_approvals(tx: Transaction) -> int:
    before_ms = tx.now_ms - KEPT_APPROVALS_MS
    found = tx.run("forgettable_approvals", before_ms=before_ms, limit=TASKS_AT_ONCE).fetchall()
    if found:
        gone = json.dumps([approval_id for (approval_id,) in found])
        for part in ("forget_approvals", "forget_receipts"):
            tx.run(part, ids=gone)
    return len(found)


def forget_streams(tx: Transaction, after: str) -> str | None:
    """Forget streams without events among the next few; gives where to go on. In the order of names, because an index by age
    would cost every event."""
    found = tx.run("streams_after", after=after, limit=STREAMS_AT_ONCE).fetchall()
    before_ms = tx.now_ms - KEPT_STREAMS_MS
    if old := [caller for caller, touched_ms in found if touched_ms <= before_ms]:
        tx.run("forget_streams", callers=json.dumps(old), before_ms=before_ms)
    return found[-1][0] if len(found) == STREAMS_AT_ONCE else None


def forget_owners(tx: Transaction) -> None:
    """Gateways that ended long ago and have left nothing behind; each start has a name of its own."""
    if tx.is_shared:
        before_ms = tx.now_ms - KEPT_OWNERS_MS
        tx.run("forget_owners", owner=tx.ownership.owner, before_ms=before_ms)
        tx.run("forget_last_writes")


def keep(tx: Transaction, name: str, value: bytes) -> bytes:
    """Whoever keeps a secret first wins, and everybody gets that value."""
    tx.run("keep", name=name, value=value)
    kept: bytes = tx.run("kept", name=name).fetchone()[0]
    return kept
