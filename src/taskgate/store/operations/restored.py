"""A database that was restored from a backup: end what may have been revoked or decided since.

A row of the database marks it as restored, so that if a gateway crashes before it has handled that, the next one does. Whether the
open store is treated as restored is in `StoreState.restore`.
"""

from __future__ import annotations

from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.store_answers import Voided
from taskgate.ports.topics import TOKENS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation
from taskgate.store.operations import approvals
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.operations.grants import RevokeGrant, standing_grants
from taskgate.store.operations.identity_records import LOGIN_RECORDS
from taskgate.store.state import StoreState
from taskgate.store.transaction import Transaction

RESTORED: Final = "restored"
"""The name of the row."""
BY: Final = "taskgate store restored"
WITHDRAWN: Final = "the store was restored from a backup; a decision that was made after the backup is not in it"
_LOCKS: Final = Locks(names=("restored",))


class DeclareRestored(Operation[None], frozen=True):
    """Make the next start treat the store as restored."""

    entry: AuditEntry

    @property
    def locks(self) -> Locks:
        return _LOCKS

    def run(self, tx: Transaction) -> None:
        tx.run("keep", name=RESTORED, value=b"")
        RecordAudit(self.entry).run(tx)

    def remember(self, answer: None, state: StoreState) -> None:
        state.restore.declare()


class TrustRestored(Operation[bool], frozen=True):
    """Make the next start treat the store as current; return whether it was marked as restored."""

    entry: AuditEntry

    @property
    def locks(self) -> Locks:
        return _LOCKS

    def run(self, tx: Transaction) -> bool:
        found = tx.run("drop_kept", name=RESTORED).rowcount == 1
        if found:
            RecordAudit(self.entry).run(tx)
        return found

    def remember(self, answer: bool, state: StoreState) -> None:
        state.restore.settle()


class AcceptRestored(Operation[Voided], frozen=True):
    """End grants, unspent approvals and logins; then the store is current. Its open tasks must have been ended before."""

    @property
    def locks(self) -> Locks:
        return _LOCKS

    def run(self, tx: Transaction) -> Voided:
        grants = standing_grants(tx)
        for grant in grants:
            RevokeGrant(grant.id, BY).run(tx)
        unspent = [row[0] for row in tx.run("unspent_approvals").fetchall()]
        for approval_id in unspent:
            approvals.withdraw(tx, approval_id, WITHDRAWN)
        logins = sum(tx.run("forget_identity_records_of_kind", kind=kind).rowcount for kind in LOGIN_RECORDS)
        tx.announce(TOKENS, "")
        voided = Voided(len(grants), len(unspent), logins)
        counts = f"void: {voided.grants} grants, {voided.approvals} unspent approvals, {voided.logins} logins"
        RecordAudit(AuditEntry(0, "store_restored", reason=counts)).run(tx)
        tx.run("drop_kept", name=RESTORED)
        return voided

    def remember(self, answer: Voided, state: StoreState) -> None:
        state.know_grants(())
        state.restore.settle()
