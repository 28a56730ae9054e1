"""What the store does to scopes and identities, and to forget one person."""

from __future__ import annotations

import json
from typing import Final

from msgspec.structs import replace

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.identity.conversation import streams_between
from taskgate.ports.store import Erased, IdentityRecord, KeptScope
from taskgate.ports.topics import GRANTS, QUESTIONS, SCOPES, TOKENS
from taskgate.store.operations.rows import record_audit
from taskgate.store.transaction import Transaction


def keep_scope(tx: Transaction, scope: KeptScope, entry: AuditEntry) -> None:
    tx.announce(SCOPES, scope.name)
    tx.run("keep_scope", name=scope.name, expires_ms=scope.expires_ms, body=scope.body)
    record_audit(tx, entry)


def forget_scope(tx: Transaction, name: str, entry: AuditEntry) -> None:
    """Nothing if another gateway has forgotten it already: its end is recorded once."""
    if tx.run("forget_scope", name=name).rowcount == 1:
        tx.announce(SCOPES, name)
        record_audit(tx, entry)


def keep_identity(tx: Transaction, kept: IdentityRecord, entry: AuditEntry | None, *, announce: bool) -> None:
    values = {"kind": kept.kind, "name": kept.name, "principal": kept.principal}
    tx.run("keep_identity_record", expires_ms=kept.expires_ms, body=kept.body, **values)
    if entry is not None:
        record_audit(tx, entry)
    if announce:
        tx.announce(TOKENS, kept.name)


def forget_identity(tx: Transaction, kind: str, name: str, entry: AuditEntry | None) -> bool:
    found = tx.run("forget_identity_record", kind=kind, name=name).rowcount == 1
    if found and entry is not None:
        record_audit(tx, entry)
    return found


def forget_identities_of(tx: Transaction, kind: str, principal: str, entry: AuditEntry | None) -> int:
    count = tx.run("forget_identity_records_of", kind=kind, principal=principal).rowcount
    if count and entry is not None:
        record_audit(tx, entry)
    return count


# What the store does to forget one person, in steps that are each one transaction and short: whatever it keeps under
# their name, apart from the audit chain.
#
# The chain holds names and digests, never arguments or results as they were sent, and a row that is taken out breaks
# it. The last step appends the row that proves the erasure.

TASKS_AT_ONCE: Final = 200
CALLS_AT_ONCE: Final = 5_000
_PARTS_OF_TASKS: Final = (
    "forget_outcomes",
    "forget_attempts",
    "forget_questions",
    "forget_calls",
    "forget_tasks",
)


def unfinished_of(tx: Transaction, principal: str) -> tuple[str, ...]:
    """The ids of their tasks that have not ended, and of their held calls that wait for a decision."""
    return tuple(row[0] for row in tx.run("unfinished_of_principal", principal=principal).fetchall())


def erase_tasks(tx: Transaction, principal: str) -> tuple[int, list[str]]:
    """Forget some of their tasks that have ended; gives how many, and the large results to remove after the commit."""
    wanted = {"principal": principal, "after": "", "finished_only": True}
    found = tx.run("tasks_of_principal", limit=TASKS_AT_ONCE, **wanted).fetchall()
    if found:
        gone = json.dumps([task_id for task_id, _ in found])
        for part in _PARTS_OF_TASKS:
            tx.run(part, ids=gone)
    return len(found), [spill for _, spill in found if spill is not None]


def erase_recorded_calls(tx: Transaction, principal: str, after: int) -> tuple[int, int | None]:
    """Forget their calls among the next few recorded ones; gives how many, and where to go on."""
    last: int = tx.run("last_recorded_call").fetchone()[0]
    up_to = min(after + CALLS_AT_ONCE, last)
    count = tx.run("erase_recorded_calls", principal=principal, after=after, up_to=up_to).rowcount
    return count, up_to if up_to < last else None


def erase_the_rest(tx: Transaction, principal: str, so_far: Erased, kept_records: str, entry: AuditEntry) -> Erased:
    """Everything that is known by their name, and the row that says what was erased."""
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
    if erased.grants:
        tx.announce(GRANTS, principal)
    if erased.identity_records:
        tx.announce(TOKENS, principal)
    counts = ", ".join(f"{name} {getattr(erased, name)}" for name in erased.__struct_fields__)
    record_audit(tx, replace(entry, reason=f"{entry.reason}: {counts}"))
    return erased
