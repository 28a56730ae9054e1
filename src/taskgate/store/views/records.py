"""The views of a store that keep approvals, scopes, the servers' last known lists, recorded calls and usage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import ApprovalEvent
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks.endings import after_approval
from taskgate.core.usage import UsageRow, days_before, with_tenant
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
from taskgate.ports.store import Erased, IdentityRecord, KeptCatalog, KeptScope, RecordedPage, Unfinished
from taskgate.ports.store_answers import StaleOwner, TooManyOpen
from taskgate.ports.topics import LISTS, list_hint
from taskgate.store.batch_writer import DeferredWrite
from taskgate.store.operations import approvals, scopes
from taskgate.store.operations.approvals import give_grant, put_first_pin, put_pin, take_back_grant
from taskgate.store.operations.reader import Reader
from taskgate.store.operations.rows import recorded_call
from taskgate.store.operations.upkeep import ROWS_AT_ONCE
from taskgate.store.transaction import Locks, Transaction, tenants_of
from taskgate.store.views.base import StoreView

# The view of a store that keeps approvals, grants and pins (`ports.approval_store`).


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
        await self._write_or_fault(lambda tx: give_grant(tx, grant, audit), Locks(names=(f"grant:{grant.id}",)))

    async def grants(self, *, all_of_them: bool = False) -> tuple[Grant, ...]:
        now = self.now_ms()
        found = await self._read(lambda reader: reader.grants(now, all_of_them=all_of_them))
        if not all_of_them:
            self.known_grants = found
        return found

    async def revoke_grant(self, grant_id: str, by: str, *, audit: AuditEntry | None = None) -> Grant | None:
        return await self._write_or_fault(
            lambda tx: take_back_grant(tx, grant_id, by, audit), Locks(names=(f"grant:{grant_id}",))
        )

    async def pins(self, server: str | None = None) -> tuple[StoredPin, ...]:
        return await self._read(lambda reader: reader.pins(server))

    async def put_pin(self, server: str, tool: str, pin: Pin, *, by: str = "", audit: AuditEntry | None = None) -> None:
        await self._write_or_fault(lambda tx: put_pin(tx, server, tool, pin, by=by, audit=audit), _of_pin(server, tool))

    async def put_first_pin(self, server: str, tool: str, pin: Pin, *, audit: AuditEntry | None = None) -> Pin:
        return await self._write_or_fault(lambda tx: put_first_pin(tx, server, tool, pin, audit), _of_pin(server, tool))

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


# The view of a store that keeps scopes handed over at run time, records of identities, and all of one person
# (`ports.store`).


class ScopeView(StoreView):
    async def keep_scope(self, scope: KeptScope, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.keep_scope(tx, scope, entry), _of_scope(scope.name))

    async def forget_scope(self, name: str, entry: AuditEntry) -> None:
        await self._write_or_fault(lambda tx: scopes.forget_scope(tx, name, entry), _of_scope(name))

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        return await self._read(lambda reader: reader.scopes())

    async def keep_identity_record(
        self, record: IdentityRecord, entry: AuditEntry | None = None, *, announce: bool = False
    ) -> None:
        await self._write_or_fault(
            lambda tx: scopes.keep_identity(tx, record, entry, announce=announce), _of_identity(record.principal)
        )

    def note_identity_record(self, record: IdentityRecord, *, announce: bool = False) -> None:
        def write(tx: Transaction) -> None:
            scopes.keep_identity(tx, record, None, announce=announce)

        self._defer(DeferredWrite(write, lambda: None, _of_identity(record.principal)))

    async def forget_identity_record(self, kind: str, name: str, entry: AuditEntry | None = None) -> bool:
        return await self._write_or_fault(lambda tx: scopes.forget_identity(tx, kind, name, entry), _of_identity(name))

    async def forget_identity_records_of(self, kind: str, principal: str, entry: AuditEntry | None = None) -> int:
        return await self._write_or_fault(
            lambda tx: scopes.forget_identities_of(tx, kind, principal, entry), _of_identity(principal)
        )

    async def find_identity_record(self, kind: str, name: str) -> IdentityRecord | None:
        return await self._read(lambda reader: reader.identity_record(kind, name))

    async def identity_records(self, kind: str) -> tuple[IdentityRecord, ...]:
        return await self._read(lambda reader: reader.identity_records(kind))

    async def identity_records_of(self, principal: str) -> tuple[IdentityRecord, ...]:
        return await self._read(lambda reader: reader.identity_records_of(principal))

    async def tasks_of(self, principal: str, after: str = "", limit: int = 50) -> tuple[str, ...]:
        return await self._read(lambda reader: reader.tasks_of(principal, after, limit))

    async def erase(self, principal: str, kept_records: str, entry: AuditEntry) -> Erased | Unfinished:
        locks = _of_identity(principal)
        if open_ids := await self._write_or_fault(lambda tx: scopes.unfinished_of(tx, principal), locks):
            return Unfinished(open_ids)
        tasks = await self._erase_tasks(principal)
        calls = await self._erase_recorded_calls(principal)
        erased = await self._write_or_fault(
            lambda tx: scopes.erase_the_rest(
                tx, principal, Erased(tasks=tasks, recorded_calls=calls), kept_records, entry
            ),
            locks,
        )
        self.known_grants = tuple(grant for grant in self.known_grants if grant.principal != principal)
        await self._engine.overwrite_deleted()
        return erased

    async def _erase_tasks(self, principal: str) -> int:
        total = 0
        while True:
            count, spills = await self._write_or_fault(
                lambda tx: scopes.erase_tasks(tx, principal), Locks(callers=(principal,))
            )
            await self._engine.large_results.remove(spills)
            total += count
            if count < scopes.TASKS_AT_ONCE:
                return total

    async def _erase_recorded_calls(self, principal: str) -> int:
        total, after = 0, 0
        while True:
            count, more = await self._write_or_fault(
                partial(scopes.erase_recorded_calls, principal=principal, after=after)
            )
            total += count
            if more is None:
                return total
            after = more


def _of_identity(name: str) -> Locks:
    return Locks(names=(f"identity:{name}",))


def _of_scope(name: str) -> Locks:
    return Locks(names=(f"scope:{name}",))


# The view of a store that keeps the servers' last known lists (`ports.catalog_store`).


class CatalogView(StoreView):
    def keep_catalog(self, catalog: KeptCatalog) -> None:
        def write(tx: Transaction) -> None:
            if tx.changes_one(
                "keep_catalog",
                server=catalog.server,
                fingerprint=catalog.fingerprint,
                listed_ms=catalog.listed_ms,
                body=catalog.body,
            ):
                tx.announce(LISTS, catalog.server)
            else:
                tx.run("confirm_catalog", server=catalog.server, listed_ms=catalog.listed_ms)

        self._defer(DeferredWrite(write))

    def announce_lists(self, server: str, kinds: Iterable[str]) -> None:
        names = (server, *(list_hint(server, kind) for kind in kinds))

        def write(tx: Transaction) -> None:
            for name in names:
                tx.announce(LISTS, name)

        # Also by a gateway that was taken for dead and has not noticed: it says nothing that could be out of date.
        self._engine.defer(DeferredWrite(write))

    def catalog_confirmed(self, server: str, listed_ms: int) -> None:
        def write(tx: Transaction) -> None:
            tx.run("confirm_catalog", server=server, listed_ms=listed_ms)

        self._defer(DeferredWrite(write))

    async def kept_catalogs(self) -> tuple[KeptCatalog, ...]:
        return await self._read(lambda reader: reader.catalogs())

    def forget_catalog(self, server: str) -> None:
        def write(tx: Transaction) -> None:
            tx.run("forget_catalog", server=server)

        self._defer(DeferredWrite(write))


# The view of a store that keeps recorded calls and usage (`ports.store.UsageStore`).
#
# Both are told after the fact and in bulk, by writes that nobody waits for. Recorded calls are bounded by age and by
# number; usage is kept by day.

MOST_RECORDED: Final = 200_000
USAGE_DAYS: Final = 400
MOST_USAGE_ROWS: Final = 200_000
_LOCKS: Final = Locks(names=("usage",))


class UsageView(StoreView):
    def record_calls(self, calls: Sequence[RecordedCall]) -> None:
        self._defer(DeferredWrite(lambda tx: _record(tx, calls)))

    async def recorded_calls(self, since_ms: int, after: int = 0, limit: int = 1_000) -> RecordedPage:
        return await self._read(lambda reader: _page(reader, since_ms, after, limit))

    async def last_recorded_call(self) -> int:
        return await self._read(lambda reader: reader.last_recorded_call())

    async def forget_recorded_calls(self, keep_ms: int, portions: int = 1) -> bool:
        for _ in range(portions):
            if not await self._write_or_fault(lambda tx: _forget(tx, keep_ms)):
                return False
        return True

    def add_usage(self, rows: Sequence[UsageRow]) -> None:
        # In one order everywhere: two gateways that add to the same rows must not wait for each other in a circle.
        ordered = sorted(rows, key=lambda row: (row.day, row.principal, row.server, row.tool))
        self._defer(DeferredWrite(lambda tx: _add(tx, ordered), locks=_LOCKS))

    async def usage(self, first: str, last: str) -> tuple[UsageRow, ...]:
        return await self._read(lambda reader: _between(reader, first, last))


def _record(tx: Transaction, calls: Sequence[RecordedCall]) -> None:
    for call in calls:
        at_ms = call.at_ms or tx.now_ms
        stamped = call if call.at_ms else msgspec.structs.replace(call, at_ms=at_ms)
        tx.run("record_call", at_ms=at_ms, body=recorded_call(tx.sealing, stamped))


def _forget(tx: Transaction, keep_ms: int) -> bool:
    """A portion of what is too old, and of the rest what is too much; whether there may be more."""
    last: int = tx.run("last_recorded_call").fetchone()[0]
    counts = (
        tx.run("forget_usage", before=days_before(tx.now_ms, USAGE_DAYS), limit=ROWS_AT_ONCE).rowcount,
        tx.run("forget_old_calls", before_ms=tx.now_ms - keep_ms, limit=ROWS_AT_ONCE).rowcount,
        tx.run("forget_first_calls", number=last - MOST_RECORDED, limit=ROWS_AT_ONCE).rowcount,
    )
    return max(counts) == ROWS_AT_ONCE


def _page(reader: Reader, since_ms: int, after: int, limit: int) -> RecordedPage:
    found = reader.recorded_calls(since_ms, after, limit)
    calls = tuple(call for _, call in found)
    return RecordedPage(calls, found[-1][0] if len(found) == limit else None)


def _add(tx: Transaction, rows: Sequence[UsageRow]) -> None:
    for row in rows:
        values = {name: getattr(row, name) for name in row.__struct_fields__ if name != "tenant"}
        tx.run("add_usage", **values)


def _between(reader: Reader, first: str, last: str) -> tuple[UsageRow, ...]:
    return tuple(with_tenant(UsageRow(*row)) for row in reader.usage_between(first, last, MOST_USAGE_ROWS))
