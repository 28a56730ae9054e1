"""Operations on a database that was restored from a backup, each in one transaction.

A row of the database marks it as restored, so that if a gateway crashes before it has handled that, the next one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.identity_store import LOGIN_RECORDS
from taskgate.ports.store_answers import Voided
from taskgate.ports.topics import TOKENS
from taskgate.store.operations import approvals
from taskgate.store.operations.audit import record_audit
from taskgate.store.operations.grants import revoke_grant, standing_grants
from taskgate.store.transaction import Transaction

RESTORED: Final = "restored"
"""The name of the row."""
BY: Final = "taskgate store restored"
WITHDRAWN: Final = "the store was restored from a backup; a decision that was made after the backup is not in it"


class RestoreState:
    """Whether the open database is treated as restored, until that has been handled.

    `release` then releases the lock that keeps other gateways from starting.
    """

    def __init__(self, is_restored: bool, release: Callable[[], None] | None = None) -> None:
        self.is_restored = is_restored
        self.release = release or (lambda: None)

    def declare(self) -> None:
        self.is_restored = True

    def settle(self) -> None:
        self.is_restored = False
        self.release()


def declare(tx: Transaction, entry: AuditEntry) -> None:
    tx.run("keep", name=RESTORED, value=b"")
    record_audit(tx, entry)


def trust(tx: Transaction, entry: AuditEntry) -> bool:
    """Treat the database as current; return whether it was marked as restored."""
    found = tx.run("drop_kept", name=RESTORED).rowcount == 1
    if found:
        record_audit(tx, entry)
    return found


def void(tx: Transaction) -> Voided:
    """End grants, unspent approvals and logins. Tasks have been ended before."""
    grants = standing_grants(tx)
    for grant in grants:
        revoke_grant(tx, grant.id, BY, None)
    unspent = [row[0] for row in tx.run("unspent_approvals").fetchall()]
    for approval_id in unspent:
        approvals.withdraw(tx, approval_id, WITHDRAWN)
    logins = sum(tx.run("forget_identity_records_of_kind", kind=kind).rowcount for kind in LOGIN_RECORDS)
    tx.announce(TOKENS, "")
    voided = Voided(len(grants), len(unspent), logins)
    counts = f"void: {voided.grants} grants, {voided.approvals} unspent approvals, {voided.logins} logins"
    record_audit(tx, AuditEntry(0, "store_restored", reason=counts))
    tx.run("drop_kept", name=RESTORED)
    return voided
