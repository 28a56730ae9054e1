"""The part of the SQLite store that keeps approvals, grants and pins (`ports.approval_store`)."""

from __future__ import annotations

from taskgate.core.audit import Entry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import Happening as ApprovalHappening
from taskgate.core.governance.approval import Workflow
from taskgate.core.governance.grants import Grant, revoke
from taskgate.core.tasks.endings import after_approval
from taskgate.ports.approval_store import (
    NO_PENDING_LIMITS,
    ApprovalRequest,
    AuditOf,
    Consequence,
    Decided,
    HeldCall,
    HeldPage,
    PendingLimits,
    StoredPin,
    StoredReceipt,
    UnknownApproval,
)
from taskgate.ports.store_answers import Advancing, StaleOwner, TooManyOpen
from taskgate.store.sqlite import approval_operations, rows
from taskgate.store.sqlite.foundation import Foundation
from taskgate.store.sqlite.transaction import Transaction


class ApprovalSide(Foundation):
    async def hold(
        self, request: ApprovalRequest, *, pending: PendingLimits = NO_PENDING_LIMITS, audit: Entry | None = None
    ) -> HeldCall | TooManyOpen | StaleOwner:
        return await self._write(lambda tx: approval_operations.hold(tx, request, pending, audit))

    async def hold_task(self, task_id: str, request: ApprovalRequest, *, audit: Entry | None = None) -> Advancing:
        return await self._write(lambda tx: approval_operations.hold_task(tx, task_id, request, audit))

    async def held(self, approval_id: str) -> HeldCall | None:
        return self._reader.held(approval_id)

    async def held_page(self, *, open_only: bool = True, after: str | None = None, limit: int = 50) -> HeldPage:
        return self._reader.held_page(open_only=open_only, after=after, limit=limit)

    async def pending_count(self, caller: str | None = None) -> int:
        return self._reader.pending_count(caller)

    async def change_held(
        self,
        approval_id: str,
        workflow: Workflow,
        happening: ApprovalHappening,
        *,
        then: Consequence = after_approval,
        audit: AuditOf | None = None,
    ) -> Decided | UnknownApproval | StaleOwner:
        return await self._write(
            lambda tx: approval_operations.change_held(tx, approval_id, workflow, happening, then, audit)
        )

    async def last_approved(self, server: str, tool: str, *, before: str | None = None) -> HeldCall | None:
        return self._reader.last_approved(server, tool, before)

    async def add_grant(self, grant: Grant, *, audit: Entry | None = None) -> None:
        await self._write_or_fault(lambda tx: _put_grant(tx, grant, audit, "grant_given"))

    async def grants(self, *, all_of_them: bool = False) -> tuple[Grant, ...]:
        return self._reader.grants(self.now_ms(), all_of_them=all_of_them)

    async def revoke_grant(self, grant_id: str, by: str, *, audit: Entry | None = None) -> Grant | None:
        def operation(tx: Transaction) -> Grant | None:
            row = tx.run("find_grant", id=grant_id).fetchone()
            if row is None:
                return None
            before = rows.grant_from(row[0])
            after = revoke(before, by, tx.now_ms)
            if after is not before:
                _put_grant(tx, after, audit, "grant_revoked")
            return after

        return await self._write_or_fault(operation)

    async def pins(self, server: str | None = None) -> tuple[StoredPin, ...]:
        return self._reader.pins(server)

    async def put_pin(self, server: str, tool: str, pin: Pin, *, by: str = "", audit: Entry | None = None) -> None:
        def operation(tx: Transaction) -> None:
            tx.run("put_pin", server=server, tool=tool, doc=rows.pin_doc(pin), by=by, at_ms=tx.now_ms)
            if audit is not None:
                tx.record(audit)

        await self._write_or_fault(operation)

    async def drop_pin(self, server: str, tool: str, *, audit: Entry | None = None) -> None:
        def operation(tx: Transaction) -> None:
            tx.run("drop_pin", server=server, tool=tool)
            if audit is not None:
                tx.record(audit)

        await self._write_or_fault(operation)

    async def receipts(self, limit: int = 50_000) -> tuple[StoredReceipt, ...]:
        return self._reader.receipts(limit)

    async def put_receipt(self, receipt: StoredReceipt) -> None:
        values = {name: getattr(receipt, name) for name in receipt.__struct_fields__}
        await self._write_or_fault(lambda tx: _run(tx, "put_receipt", **values))

    async def drop_receipt(self, approval_id: str, place: str) -> None:
        await self._write_or_fault(lambda tx: _run(tx, "drop_receipt", approval_id=approval_id, place=place))


def _run(tx: Transaction, name: str, **values: str) -> None:
    tx.run(name, **values)


def _put_grant(tx: Transaction, grant: Grant, audit: Entry | None, event: str) -> None:
    tx.run("put_grant", **rows.grant_columns(grant))
    tx.record(audit if audit is not None else _entry(grant, event, tx.now_ms))


def _entry(grant: Grant, event: str, at_ms: int) -> Entry:
    return Entry(
        at_ms=at_ms,
        event=event,
        principal=grant.principal or "",
        scope=grant.scope,
        server=grant.server,
        name=grant.tool,
        arguments_digest=grant.arguments_digest or "",
        approval_id=grant.approval_id,
        approvers=grant.granted_by,
        reason=f"revoked by {grant.revoked_by}" if grant.revoked_at_ms is not None else "",
    )
