"""Erase the data of one person, in steps that are each one short transaction.

Everything stored under their name is deleted, except rows of the audit chain: those contain names and digests, never arguments or
results, and deleting one would break the chain. The last step appends the row that proves the erasure.
"""

from __future__ import annotations

import json
from typing import Final

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.identity.conversation import streams_between
from taskgate.ports.personal_data_store import Erased
from taskgate.ports.topics import GRANTS, QUESTIONS, TOKENS
from taskgate.store.operations.audit import record_audit
from taskgate.store.operations.history import erase_names
from taskgate.store.transaction import Transaction

TASKS_PER_STEP: Final = 200
CALLS_PER_STEP: Final = 5_000
_DELETE_TASKS: Final = (
    "forget_outcomes",
    "forget_attempts",
    "forget_questions",
    "forget_script_calls",
    "forget_scripts",
    "forget_calls",
    "forget_tasks",
)


def unfinished_of(tx: Transaction, principal: str) -> tuple[str, ...]:
    """Return the ids of their unfinished tasks and of their held calls that wait for a decision."""
    return tuple(row[0] for row in tx.run("unfinished_of_principal", principal=principal).fetchall())


def erase_tasks(tx: Transaction, principal: str) -> tuple[int, list[str]]:
    """Delete some of their finished tasks; return how many, and the large results to remove after the commit."""
    values = {"principal": principal, "after": "", "finished_only": True}
    found = tx.run("tasks_of_principal", limit=TASKS_PER_STEP, **values).fetchall()
    if found:
        gone = json.dumps([task_id for task_id, _ in found])
        for statement in _DELETE_TASKS:
            tx.run(statement, ids=gone)
    return len(found), [spill for _, spill in found if spill is not None]


def erase_recorded_calls(tx: Transaction, principal: str, after: int) -> tuple[int, int | None]:
    """Delete their calls among the next recorded ones; return how many, and where the next step continues."""
    last: int = tx.run("last_recorded_call").fetchone()[0]
    up_to = min(after + CALLS_PER_STEP, last)
    count = tx.run("erase_recorded_calls", principal=principal, after=after, up_to=up_to).rowcount
    return count, up_to if up_to < last else None


def erase_other_data(tx: Transaction, principal: str, so_far: Erased, kept_records: str, entry: AuditEntry) -> Erased:
    """Delete everything else under their name, and append the audit row with the counts."""
    first, beyond = streams_between(principal)
    approvals = [approval_id for (approval_id,) in tx.run("erase_approvals", principal=principal).fetchall()]
    tx.run("forget_receipts", ids=json.dumps(approvals))
    erased = replace(
        so_far,
        approvals=len(approvals),
        grants=tx.run("erase_grants", principal=principal).rowcount,
        events=tx.run("erase_events", principal=principal, first=first, beyond=beyond).rowcount,
        usage=tx.run("erase_usage", principal=principal).rowcount,
        identity_records=tx.run("erase_identity_records", principal=principal, kept=kept_records).rowcount,
    )
    if tx.is_shared:
        erased = replace(
            erased,
            open_questions=tx.run("erase_open_questions", principal=principal, first=first, beyond=beyond).rowcount,
            sessions=tx.run("erase_sessions", principal=principal).rowcount,
        )
        tx.announce(QUESTIONS, principal)
    tx.run("erase_keys", principal=principal)
    erase_names(tx, principal)
    tx.run("erase_accepter", principal=principal)
    tx.run("erase_earlier_accepter", principal=principal)
    if erased.grants:
        tx.announce(GRANTS, principal)
    if erased.identity_records:
        tx.announce(TOKENS, principal)
    counts = ", ".join(f"{name} {getattr(erased, name)}" for name in erased.__struct_fields__)
    record_audit(tx, replace(entry, reason=f"{entry.reason}: {counts}"))
    return erased
