"""What the store does when its database was restored from a backup, each in one transaction.

That it was restored is a row of the database, so that a start which dies before it has dealt with it leaves it to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.store import LOGIN_RECORDS
from taskgate.ports.store_answers import Voided
from taskgate.ports.topics import TOKENS
from taskgate.store.operations import approvals
from taskgate.store.operations.rows import record_audit
from taskgate.store.transaction import Transaction

RESTORED: Final = "restored"
"""The name of the row."""
BY: Final = "taskgate store restored"
WITHDRAWN: Final = "the store was restored from a backup; a decision that was made after the backup is not in it"


class RestoreState:
    """Whether the database that was opened counts as restored, until that has been dealt with.

    `release` lets go of what keeps other gateways away until then.
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
    """Whether it had counted as restored."""
    found = tx.run("drop_kept", name=RESTORED).rowcount == 1
    if found:
        record_audit(tx, entry)
    return found


def void(tx: Transaction) -> Voided:
    """Grants, unspent approvals and logins end. Their tasks have ended before this."""
    grants = approvals.standing_grants(tx)
    for grant in grants:
        approvals.take_back_grant(tx, grant.id, BY, None)
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
