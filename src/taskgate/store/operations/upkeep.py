"""Taking over, and forgetting: what the store does for itself, each inside one transaction."""

from __future__ import annotations

import json
from typing import Final

from taskgate.core.events import TaskEvent, event_data
from taskgate.core.tasks.recovery import SHOWN_AS_EXPIRED_MS
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.ports.store_answers import Swept
from taskgate.store.operations import rows
from taskgate.store.operations.events import tell
from taskgate.store.operations.tasks import KEY_GOOD_MS
from taskgate.store.operations.transaction import Transaction

# Few at once: a sweep runs between the calls of the event loop.
SWEEP_AT_ONCE: Final = 200
KEPT_STREAMS_MS: Final = 24 * 3_600_000
KEPT_APPROVALS_MS: Final = 30 * 24 * 3_600_000


def claim(tx: Transaction) -> tuple[str, ...]:
    """Take the tasks of owners that are dead, and of our own life before; the adapter knows who is dead."""
    ours = tx.ownership
    dead = json.dumps([owner for (owner,) in tx.run("dead_owners", owner=ours.owner)])
    tx.run("retire_owners", owners=dead)
    claimed = tx.run("claim_tasks", owner=ours.owner, fence=ours.fence, owners=dead)
    return tuple(sorted(task_id for (task_id,) in claimed.fetchall()))


def sweep(tx: Transaction) -> tuple[Swept, list[str]]:
    """Forget what nobody may ask for any more. Gives also the names of result files to remove after the commit."""
    expired, spills = _expire_tasks(tx)
    now = tx.now_ms
    swept = Swept(
        tasks=len(expired) + _forget_tasks(tx),
        expired=expired,
        events=tx.run("forget_events", before_ms=now - tx.kept_events.for_ms, limit=10 * SWEEP_AT_ONCE).rowcount,
        keys=tx.run("forget_keys", before_ms=now - KEY_GOOD_MS).rowcount,
        approvals=tx.run("forget_approvals", before_ms=now - KEPT_APPROVALS_MS).rowcount,
    )
    if swept.approvals:
        tx.run("forget_receipts")
    tx.run("forget_streams", before_ms=now - KEPT_STREAMS_MS)
    tx.run("forget_grants", before_ms=now - KEPT_APPROVALS_MS)
    tx.run("forget_ended_identity_records", now_ms=now)
    return swept, spills


def _expire_tasks(tx: Transaction) -> tuple[tuple[Task, ...], list[str]]:
    """Results past their time go, with an event; the tasks can be seen as expired for a while."""
    found = tx.run("expiring_tasks", now_ms=tx.now_ms, limit=SWEEP_AT_ONCE).fetchall()
    tasks = tuple(rows.task_from(tx.sealing, doc, owner, fence) for doc, owner, fence, _ in found)
    if tasks:
        gone = json.dumps([task.id for task in tasks])
        # An idempotency key outlives its task and must still be able to say whether the tool ran.
        tx.run("remember_executed", ids=gone)
        for part in ("forget_outcomes", "forget_attempts", "forget_questions"):
            tx.run(part, ids=gone)
        tx.run("expire_tasks", ids=gone, forget_at_ms=tx.now_ms + SHOWN_AS_EXPIRED_MS)
    for task in tasks:
        if task.state is not TaskState.EXPIRED:
            tell(tx, task.asked_in.stream, TaskEvent.EXPIRED.value, task.server, event_data(task))
    return tasks, [spill for *_, spill in found if spill is not None]


def _forget_tasks(tx: Transaction) -> int:
    found = tx.run("forgettable_tasks", now_ms=tx.now_ms, limit=SWEEP_AT_ONCE).fetchall()
    if found:
        gone = json.dumps([task_id for (task_id,) in found])
        for part in ("forget_tasks", "forget_calls"):
            tx.run(part, ids=gone)
    return len(found)


def keep(tx: Transaction, name: str, value: bytes) -> bytes:
    """Whoever keeps a secret first wins, and everybody gets that value."""
    tx.run("keep", name=name, value=value)
    kept: bytes = tx.run("kept", name=name).fetchone()[0]
    return kept
