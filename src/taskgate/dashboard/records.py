"""Reads stored data on behalf of a person, limited to what that person may see."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from taskgate.core.audit.chain import AuditEntry, Row
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.identity.identity import principal_name
from taskgate.core.identity.roles import Permission
from taskgate.core.ids import is_task_id
from taskgate.core.scripts.record import ScriptRecord
from taskgate.core.tasks.task import Task
from taskgate.core.usage import UsageRow
from taskgate.core.waterfall import Span, Waterfall
from taskgate.dashboard.ports import GrantRevocation, TemporaryScopes
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.account_connector import AccountConnector
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TaskFilter, TaskPage
from taskgate.replies.servers import AccountRow
from taskgate.store.operations.approvals import FindHeld, HeldCalls, HeldPage, PendingCount
from taskgate.store.operations.audit import AuditRows, RecordAudit
from taskgate.store.operations.grants import FindGrants
from taskgate.store.operations.scripts import CallsOfScript, FindScript, ScriptCall
from taskgate.store.operations.task_queries import EndedBadly, FindTask, FindTasks
from taskgate.store.operations.usage import RecordedCalls, RecordedPage, UsageBetween


class Records(msgspec.Struct, eq=False, kw_only=True):
    store: Store
    plan: Live[Plan]
    revocation: GrantRevocation
    temporary_scopes: TemporaryScopes
    account_connector: AccountConnector
    waterfall: Waterfall

    def now_ms(self) -> int:
        return self.store.now_ms()

    async def task(self, user: Approver, task_id: str) -> Task | None:
        task = await self.store.ask(FindTask(task_id)) if is_task_id(task_id) else None
        return task if task is not None and user.may_see_data_of(task.principal) else None

    async def tasks(
        self, user: Approver, filters: TaskFilter, *, only: str | None, after: str | None = None, limit: int = 50
    ) -> TaskPage:
        """`only` is the one principal whose tasks this person may see, or None for all principals of the person's tenant."""
        if only is not None and filters.principal not in (None, only):
            return TaskPage((), None)
        within = msgspec.structs.replace(
            filters, principal=only or filters.principal, tenant=user.tenant_of_search(only or filters.principal)
        )
        return await self.store.ask(FindTasks(within, after=after, limit=limit))

    async def ended_badly(self, user: Approver, since_ms: int, *, only: str | None, limit: int) -> tuple[Task, ...]:
        """Tasks that ended without a result since then, newest first."""
        visible = TaskFilter(principal=only, tenant=user.tenant_of_search(only))
        return await self.store.ask(EndedBadly(visible, since_ms, limit))

    async def script_record(self, script: Task) -> ScriptRecord:
        """The record of a script that this person may see."""
        stored = await self.store.ask(FindScript(script.id))
        return stored.record if stored is not None else ScriptRecord()

    async def script_calls(self, script: Task, after: int, limit: int) -> tuple[ScriptCall, ...]:
        """The calls of a script that this person may see, after the one with this number."""
        return await self.store.ask(CallsOfScript(script.id, after, limit))

    async def held(self, user: Approver, approval_id: str) -> HeldCall | None:
        held = await self.store.ask(FindHeld(approval_id))
        return held if held is not None and user.reaches(held.approval.binding.principal) else None

    async def held_page(
        self, user: Approver, *, open_only: bool = True, after: str | None = None, limit: int = 50
    ) -> HeldPage:
        """Open approvals, or all of them, of the callers of this person's tenant, oldest first."""
        return await self.store.ask(HeldCalls(open_only=open_only, after=after, limit=limit, tenant=user.tenant))

    async def pending_count(self, user: Approver) -> int:
        """The number of open approvals; for people of a tenant, of its callers."""
        return await self.store.ask(PendingCount(tenant=user.tenant))

    async def grants(self, user: Approver, *, all_of_them: bool = False) -> list[Grant]:
        every = await self.store.ask(FindGrants(all_of_them=all_of_them))
        return [grant for grant in every if user.reaches(grant.principal or principal_name(grant.tenant, ""))]

    async def revoke_grant(self, user: Approver, grant_id: str) -> Grant | None:
        if not any(grant.id == grant_id for grant in await self.grants(user, all_of_them=True)):
            return None
        return await self.revocation.revoke(user, grant_id)

    async def usage(self, user: Approver, first: str, last: str) -> tuple[UsageRow, ...]:
        return tuple(
            row for row in await self.store.ask(UsageBetween(first, last)) if user.may_see_data_of(row.principal)
        )

    async def audit_rows(self, user: Approver, after: int, limit: int) -> tuple[list[Row], int]:
        """The visible ones of the next rows, and the number of the last row that was read."""
        rows = await self.store.ask(AuditRows(after, limit))
        return [row for row in rows if user.reaches(row.entry.principal)], rows[-1].number if rows else after

    async def recorded_calls(self, user: Approver, since_ms: int, after: int, limit: int) -> RecordedPage:
        page = await self.store.ask(RecordedCalls(since_ms, after, limit))
        return RecordedPage(tuple(call for call in page.calls if user.reaches(call.principal)), page.after)

    def spans(self, user: Approver) -> Sequence[Span]:
        return [span for span in self.waterfall.latest() if user.reaches(span.caller)]

    async def accounts(self, user: Approver, server: str) -> list[AccountRow] | None:
        """Accounts at a server; the shared account belongs to no tenant."""
        listed = await self.account_connector.accounts(server)
        return None if listed is None else [row for row in listed if user.reaches(row.principal or "")]

    def may_connect(self, user: Approver, principal: str) -> bool:
        """Whether this person may connect an account for a principal: their own, or as an operator the shared one (empty)."""
        if not user.reaches(principal):
            return False
        if not principal:
            return user.may(Permission.ACT)
        return self.plan.value.governing.owns_account_of(user, principal)

    def can_log_in(self, principal: str) -> bool:
        return self.plan.value.governing.login_of(principal) is not None

    async def note_account(self, event: str, user: Approver, server: str, principal: str) -> None:
        """Record in the audit log that an account was connected or disconnected."""
        entry = AuditEntry(0, event, user.id, server=server, kind="account", reason=principal or "shared")
        await self.store.do(RecordAudit(entry))

    def has_scope(self, user: Approver, name: str) -> bool:
        """Configured scopes are visible to all; a temporary scope to the tenant of its creator."""
        handed = self.temporary_scopes.find(name)
        return name in self.plan.value.scopes and (handed is None or user.reaches(handed.created_by))

    def scopes(self, user: Approver) -> list[str]:
        return [name for name in self.plan.value.scopes if self.has_scope(user, name)]
