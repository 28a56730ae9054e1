"""The view of a store that keeps approvals, grants and pins (`ports.approval_store`)."""

from __future__ import annotations

from taskgate.core.audit import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import ApprovalEvent, Workflow
from taskgate.core.governance.decision import Grant
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
from taskgate.store.operations import approvals, grants, pins
from taskgate.store.operations.transaction import Locks, tenants_of
from taskgate.store.views.base import StoreView


class ApprovalView(StoreView):
    async def hold(
        self, request: ApprovalRequest, *, pending: PendingLimits = NO_PENDING_LIMITS, audit: AuditEntry | None = None
    ) -> HeldCall | TooManyOpen | StaleOwner:
        limits: tuple[str, ...] = (request.counted_as,)
        if pending.per_tenant is not None:
            limits += tenants_of(limits)
        return await self._write(lambda tx: approvals.hold(tx, request, pending, audit), Locks(limits=limits))

    async def hold_task(self, task_id: str, request: ApprovalRequest, *, audit: AuditEntry | None = None) -> Advancing:
        return await self._write(lambda tx: approvals.hold_task(tx, task_id, request, audit), Locks(tasks=(task_id,)))

    async def held(self, approval_id: str) -> HeldCall | None:
        return await self._read(lambda reader: reader.held(approval_id))

    async def held_page(self, *, open_only: bool = True, after: str | None = None, limit: int = 50) -> HeldPage:
        return await self._read(lambda reader: reader.held_page(open_only=open_only, after=after, limit=limit))

    async def pending_count(self, caller: str | None = None) -> int:
        return await self._read(lambda reader: reader.pending_count(caller))

    async def change_held(
        self,
        approval_id: str,
        workflow: Workflow,
        event: ApprovalEvent,
        *,
        then: Consequence = after_approval,
        audit: AuditOf | None = None,
    ) -> Decided | UnknownApproval | StaleOwner:
        return await self._write(
            lambda tx: approvals.change_held(tx, approval_id, workflow, event, then, audit),
            Locks(approvals=(approval_id,)),
        )

    async def last_approved(self, server: str, tool: str, *, before: str | None = None) -> HeldCall | None:
        return await self._read(lambda reader: reader.last_approved(server, tool, before))

    async def add_grant(self, grant: Grant, *, audit: AuditEntry | None = None) -> None:
        await self._write_or_fault(lambda tx: grants.give(tx, grant, audit), Locks(names=(f"grant:{grant.id}",)))

    async def grants(self, *, all_of_them: bool = False) -> tuple[Grant, ...]:
        now = self.now_ms()
        found = await self._read(lambda reader: reader.grants(now, all_of_them=all_of_them))
        if not all_of_them:
            self.known_grants = found
        return found

    async def revoke_grant(self, grant_id: str, by: str, *, audit: AuditEntry | None = None) -> Grant | None:
        return await self._write_or_fault(
            lambda tx: grants.take_back(tx, grant_id, by, audit), Locks(names=(f"grant:{grant_id}",))
        )

    async def pins(self, server: str | None = None) -> tuple[StoredPin, ...]:
        return await self._read(lambda reader: reader.pins(server))

    async def put_pin(self, server: str, tool: str, pin: Pin, *, by: str = "", audit: AuditEntry | None = None) -> None:
        await self._write_or_fault(lambda tx: pins.put(tx, server, tool, pin, by, audit), _of_pin(server, tool))

    async def put_first_pin(self, server: str, tool: str, pin: Pin, *, audit: AuditEntry | None = None) -> Pin:
        return await self._write_or_fault(
            lambda tx: pins.put_first(tx, server, tool, pin, audit), _of_pin(server, tool)
        )

    async def receipts(self, limit: int = 50_000) -> tuple[StoredReceipt, ...]:
        return await self._read(lambda reader: reader.receipts(limit))

    async def put_receipt(self, receipt: StoredReceipt) -> None:
        await self._write_or_fault(
            lambda tx: approvals.put_receipt(tx, receipt), Locks(approvals=(receipt.approval_id,))
        )

    async def drop_receipt(self, approval_id: str, place: str) -> None:
        await self._write_or_fault(
            lambda tx: approvals.drop_receipt(tx, approval_id, place), Locks(approvals=(approval_id,))
        )


def _of_pin(server: str, tool: str) -> Locks:
    return Locks(names=(f"pin:{server}\n{tool}",))
