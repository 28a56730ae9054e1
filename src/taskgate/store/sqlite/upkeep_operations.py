"""Taking over, and forgetting: what the store does for itself, each inside one transaction."""

from __future__ import annotations

import json
from typing import Final

from taskgate.ports.store_answers import Swept
from taskgate.store.sqlite.task_operations import KEY_GOOD_MS
from taskgate.store.sqlite.transaction import Transaction

# Few at once: a sweep runs between the calls of the event loop.
SWEEP_AT_ONCE: Final = 200
KEPT_STREAMS_MS: Final = 24 * 3_600_000
KEPT_APPROVALS_MS: Final = 30 * 24 * 3_600_000


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
        events=tx.run("forget_events", before_ms=now - tx.kept_events.for_ms, limit=10 * SWEEP_AT_ONCE).rowcount,
        keys=tx.run("forget_keys", before_ms=now - KEY_GOOD_MS).rowcount,
        approvals=tx.run("forget_approvals", before_ms=now - KEPT_APPROVALS_MS).rowcount,
    )
    if swept.approvals:
        tx.run("forget_receipts")
    tx.run("forget_streams", before_ms=now - KEPT_STREAMS_MS)
    tx.run("forget_grants", before_ms=now - KEPT_APPROVALS_MS)
    return swept, spills


def _forget_tasks(tx: Transaction) -> tuple[int, list[str]]:
    found = tx.run("forgettable_tasks", now_ms=tx.now_ms, limit=SWEEP_AT_ONCE).fetchall()
    if not found:
        return 0, []
    gone = json.dumps([task_id for task_id, _ in found])
    # An idempotency key outlives its task and must still be able to say whether the tool ran.
    tx.run("remember_executed", ids=gone)
    for part in ("forget_tasks", "forget_calls", "forget_outcomes", "forget_attempts", "forget_questions"):
        tx.run(part, ids=gone)
    return len(found), [spill for _, spill in found if spill is not None]
