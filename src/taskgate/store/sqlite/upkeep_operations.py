"""Taking over, and forgetting: what the store does for itself, each inside one transaction."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.tasks.task import Task
from taskgate.ports.event_outbox import KEPT_EVENTS_MS
from taskgate.ports.store_answers import Swept
from taskgate.store.sqlite.task_operations import KEY_GOOD_MS
from taskgate.store.sqlite.transaction import Transaction

SWEEP_AT_ONCE: Final = 500
KEPT_STREAMS_MS: Final = 24 * 3_600_000
KEPT_APPROVALS_MS: Final = 30 * 24 * 3_600_000

_read_task: Final = msgspec.json.Decoder(Task).decode


def claim(tx: Transaction) -> int:
    """Whoever owned tasks before us is dead: on one file there is one process, and the kernel's lock says it is us."""
    ours = tx.ownership
    tx.run("retire_others", owner=ours.owner)
    return tx.run("claim_tasks", owner=ours.owner, fence=ours.fence).rowcount


def sweep(tx: Transaction) -> tuple[Swept, list[str]]:
    """Forget what nobody may ask for any more. Gives also the names of result files to remove after the commit."""
    tasks, spills = _forget_tasks(tx)
    now = tx.now_ms
    swept = Swept(
        tasks=tasks,
        events=tx.run("forget_events", before_ms=now - KEPT_EVENTS_MS).rowcount,
        keys=tx.run("forget_keys", before_ms=now - KEY_GOOD_MS).rowcount,
        approvals=tx.run("forget_approvals", before_ms=now - KEPT_APPROVALS_MS).rowcount,
    )
    tx.run("forget_streams", before_ms=now - KEPT_STREAMS_MS)
    tx.run("forget_grants", before_ms=now - KEPT_APPROVALS_MS)
    return swept, spills


def _forget_tasks(tx: Transaction) -> tuple[int, list[str]]:
    found = tx.run("forgettable_tasks", now_ms=tx.now_ms, limit=SWEEP_AT_ONCE).fetchall()
    for task_id, doc, _ in found:
        # The idempotency key outlives its task and must still be able to say whether the tool ran.
        executed = _read_task(doc).executed
        tx.run("remember_executed", id=task_id, executed=None if executed is None else executed.value)
        for part in ("forget_task", "forget_call", "forget_outcome", "forget_attempts", "forget_questions"):
            tx.run(part, id=task_id)
    return len(found), [spill for _, _, spill in found if spill is not None]
