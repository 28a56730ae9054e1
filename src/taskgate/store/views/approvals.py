"""The view of a store that keeps approvals, grants, pins and receipts (`ports.approval_store`)."""

from __future__ import annotations

from collections.abc import Sequence

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import ApprovalEvent
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks.endings import after_approval
from taskgate.ports.approval_store import (
    NO_PENDING_LIMITS,
    ApprovalRequest,
    AuditOf,
    Consequence,
    Decided,
    FirstPin,
    HeldCall,
    HeldPage,
    PendingLimits,
    StoredPin,
    StoredReceipt,
    UnknownApproval,
)
from taskgate.ports.store_answers import StaleOwner, TooManyOpen
from taskgate.store.locks import Locks, tenants_of
from taskgate.store.operations import approvals, grants, pins
from taskgate.store.views.base import StoreView


class ApprovalView(StoreView):
    async def hold(
        self,
        request: ApprovalRequest,
        *,
        pending: PendingLimits = NO_PENDING_LIMITS,
        audit: AuditEntry | None = None,
        joins: bool = False,
    ) -> HeldCall | TooManyOpen | StaleOwner:
        limits: tuple[str, ...] = (request.counted_as,)
        if pending.per_tenant is not None:
            limits += tenants_of(limits)
        return await self._write(
            lambda tx: approvals.hold(tx, request, pending, audit, joins=joins), Locks(limits=limits)
        )

    async def held(self, approval_id: str) -> HeldCall | None:
        return await self._read(lambda reader: reader.held(approval_id))

    async def take_held(self, approval_id: str) -> bool:
        locks = Locks(approvals=(approval_id,))
        return await self._write_or_fault(lambda tx: approvals.take_held(tx, approval_id), locks)

    async def held_page(
        self, *, open_only: bool = True, after: str | None = None, limit: int = 50, tenant: str | None = None
    ) -> HeldPage:
        return await self._read(
            lambda reader: reader.held_page(open_only=open_only, after=after, limit=limit, tenant=tenant)
        )

    async def pending_count(self, caller: str | None = None, *, tenant: str | None = None) -> int:
        return await self._read(lambda reader: reader.pending_count(caller, tenant))

    async def change_held(
        self,
        approval_id: str,
        workflow: Workflow,
        event: ApprovalEvent,
        *,
        not_before_ms: int = 0,
        then: Consequence = after_approval,
        audit: AuditOf | None = None,
    ) -> Decided | UnknownApproval | StaleOwner:
        return await self._write(
            lambda tx: approvals.change_held(
                tx, approval_id, workflow, event, not_before_ms=not_before_ms, then=then, audit=audit
            ),
            Locks(approvals=(approval_id,)),
        )

    async def last_approved(self, server: str, tool: str, *, before: str | None = None) -> HeldCall | None:
        return await self._read(lambda reader: reader.last_approved(server, tool, before))

    async def add_grant(self, grant: Grant, *, audit: AuditEntry | None = None) -> None:
        await self._write_or_fault(lambda tx: grants.add_grant(tx, grant, audit), Locks(names=(f"grant:{grant.id}",)))

    async def grants(self, *, all_of_them: bool = False) -> tuple[Grant, ...]:
        now = self.now_ms()
        found = await self._read(lambda reader: reader.grants(now, all_of_them=all_of_them))
        if not all_of_them:
            self.known_grants = found
        return found

    async def revoke_grant(self, grant_id: str, by: str, *, audit: AuditEntry | None = None) -> Grant | None:
        return await self._write_or_fault(
            lambda tx: grants.revoke_grant(tx, grant_id, by, audit), Locks(names=(f"grant:{grant_id}",))
        )

    async def pins(self, server: str | None = None) -> tuple[StoredPin, ...]:
        return await self._read(lambda reader: reader.pins(server))

    async def accepted_definitions(self, server: str, tool: str) -> tuple[StoredPin, ...]:
        return await self._read(lambda reader: reader.accepted_definitions(server, tool))

    async def put_pin(self, server: str, tool: str, pin: Pin, *, by: str = "", audit: AuditEntry | None = None) -> None:
        await self._write_or_fault(
            lambda tx: pins.put_pin(tx, server, tool, pin, by=by, audit=audit), _pin_locks(server, tool)
        )

    async def put_first_pins(self, first: Sequence[FirstPin]) -> tuple[Pin, ...]:
        names = tuple(name for each in first for name in _pin_locks(each.server, each.tool).names)
        return await self._write_or_fault(
            lambda tx: tuple(pins.put_first_pin(tx, each) for each in first), Locks(names=names)
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


def _pin_locks(server: str, tool: str) -> Locks:
    return Locks(names=(f"pin:{server}\n{tool}",))
