"""What belongs to principals, as somebody may see it: records, the JSON rows that scripts read, and approvals to decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from taskgate.core.audit.chain import AuditEntry, Row
from taskgate.core.governance import approval as rules
from taskgate.core.governance.approval import Approval, Refusal, Verdict, Vote
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import Card
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.identity import principal_name, tenant_of
from taskgate.core.identity.roles import Permission
from taskgate.core.ids import is_task_id
from taskgate.core.redaction.difference import Difference
from taskgate.core.tasks.projections_stateful import stateful_status, status_message
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso
from taskgate.core.usage import UsageRow
from taskgate.core.waterfall import Span
from taskgate.dashboard.web import PAGE
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.standing_grants import GrantWish, Ruling
from taskgate.gateway.services.console import ConsoleServices
from taskgate.ports.approval_channel import OTHER_ARGUMENTS, UNKNOWN_APPROVAL
from taskgate.ports.approval_store import HeldCall, HeldPage
from taskgate.ports.store import RecordedPage
from taskgate.ports.store_answers import TaskFilter, TaskPage

MOST_PAGES: Final = 20
"""So many pages of everybody's are looked through for one page of a tenant's; the next page goes on from there."""


class Records:
    def __init__(self, gateway: ConsoleServices) -> None:
        self._gateway = gateway
        self._store = gateway.tasks.store

    def now_ms(self) -> int:
        return self._store.now_ms()

    async def task(self, who: Approver, task_id: str) -> Task | None:
        task = await self._store.get(task_id) if is_task_id(task_id) else None
        return task if task is not None and who.may_see_of(task.principal) else None

    async def tasks(
        self, who: Approver, wanted: TaskFilter, *, only: str | None, after: str | None = None, limit: int = 50
    ) -> TaskPage:
        """`only` is whose tasks they may see at most, or None for everybody's of their tenant."""
        if only is not None and wanted.principal not in (None, only):
            return TaskPage((), None)
        within = msgspec.structs.replace(wanted, principal=only or wanted.principal, tenant=tenant_of(who.id) or None)
        return await self._store.find_tasks(within, after=after, limit=limit)

    async def ended_badly(self, who: Approver, since_ms: int, *, only: str | None, limit: int) -> tuple[Task, ...]:
        """What ended without a result since then, the last first."""
        whose = TaskFilter(principal=only, tenant=tenant_of(who.id) or None)
        return await self._store.ended_badly(whose, since_ms, limit)

    async def held(self, who: Approver, approval_id: str) -> HeldCall | None:
        held = await self._store.held(approval_id)
        return held if held is not None and who.reaches(held.approval.binding.principal) else None

    async def held_page(
        self, who: Approver, *, open_only: bool = True, after: str | None = None, limit: int = 50
    ) -> HeldPage:
        found: list[HeldCall] = []
        for _ in range(MOST_PAGES):
            page = await self._store.held_page(open_only=open_only, after=after, limit=limit - len(found))
            found += [held for held in page.held if who.reaches(held.approval.binding.principal)]
            after = page.after
            if after is None or len(found) >= limit:
                break
        return HeldPage(tuple(found), after)

    async def pending_count(self, who: Approver) -> int:
        """How many approvals wait, for people of a tenant up to a thousand."""
        if not tenant_of(who.id):
            return await self._store.pending_count()
        return len((await self.held_page(who, limit=1_000)).held)

    async def grants(self, who: Approver, *, all_of_them: bool = False) -> list[Grant]:
        every = await self._store.grants(all_of_them=all_of_them)
        return [grant for grant in every if who.reaches(grant.principal or principal_name(grant.tenant, ""))]

    async def revoke_grant(self, who: Approver, grant_id: str) -> Grant | None:
        if not any(grant.id == grant_id for grant in await self.grants(who, all_of_them=True)):
            return None
        return await self._gateway.approvals.grants.revoke(who, grant_id)

    async def usage(self, who: Approver, first: str, last: str) -> tuple[UsageRow, ...]:
        return tuple(row for row in await self._store.usage(first, last) if who.may_see_of(row.principal))

    async def audit_rows(self, who: Approver, after: int, limit: int) -> tuple[list[Row], int]:
        """Rows of so many that follow, and the number of the last that was looked at."""
        rows = await self._store.audit_rows(after, limit)
        return [row for row in rows if who.reaches(row.entry.principal)], rows[-1].number if rows else after

    async def recorded_calls(self, who: Approver, since_ms: int, after: int, limit: int) -> RecordedPage:
        page = await self._store.recorded_calls(since_ms, after, limit)
        return RecordedPage(tuple(call for call in page.calls if who.reaches(call.principal)), page.after)

    def spans(self, who: Approver) -> Sequence[Span]:
        return [span for span in self._gateway.waterfall.latest() if who.reaches(span.caller)]

    async def accounts(self, who: Approver, server: str) -> list[dict[str, Any]] | None:
        """Accounts at a server; the one that all share is no tenant's."""
        listed = await self._gateway.accounts.accounts(server)
        return None if listed is None else [row for row in listed if who.reaches(row["principal"] or "")]

    def may_connect(self, who: Approver, principal: str) -> bool:
        """Whether this person may connect an account for a principal: their own, or as an operator the shared one (empty)."""
        if not who.reaches(principal):
            return False
        if not principal:
            return who.may(Permission.ACT)
        return self._gateway.plan.value.governing.owns_account_of(who, principal)

    def can_log_in(self, principal: str) -> bool:
        return self._gateway.plan.value.governing.login_of(principal) is not None

    async def note_account(self, event: str, who: Approver, server: str, principal: str) -> None:
        """Put on record who connected or disconnected whose account."""
        entry = AuditEntry(0, event, who.id, server=server, kind="account", reason=principal or "shared")
        await self._store.record_now(entry)

    def has_scope(self, who: Approver, name: str) -> bool:
        """Scopes of the configuration are everybody's; one that was handed over is of the tenant of who did."""
        handed = self._gateway.temporary_scopes.find(name)
        return self._gateway.has_scope(name) and (handed is None or who.reaches(handed.created_by))

    def scopes(self, who: Approver) -> list[str]:
        return [name for name in self._gateway.plan.value.scopes if self.has_scope(who, name)]


# Approvals, grants, tasks and pins as the JSON rows that scripts read. Field names are a promise; none will be taken
# away.


def approval_row(held: HeldCall, approval: Approval, workflow: Workflow, url: str) -> dict[str, Any]:
    """One line of the list. Arguments are only in the full view, where hidden fields are marked."""
    bound = approval.binding
    return {
        "id": approval.id,
        "state": approval.state.value,
        "tool": held.wire_name,
        "server": bound.server,
        "name": bound.tool,
        "kind": bound.kind.value,
        "requester": bound.principal,
        "scope": bound.scope,
        "workflow": approval.workflow,
        "rule": approval.rule,
        "arguments_digest": bound.arguments_digest,
        "approvals_needed": workflow.approvals_needed,
        "approvals_given": sum(1 for vote in approval.votes if vote.verdict.value == "approve"),
        "asked_at": iso(approval.asked_at_ms),
        "expires_at": iso(bound.expires_at_ms),
        "decided_at": iso(approval.decided_at_ms) if approval.decided_at_ms is not None else None,
        "reason": approval.reason,
        "task_id": held.task_id,
        "url": url,
    }


def approval_detail(row: dict[str, Any], card: Card) -> dict[str, Any]:
    """The list's line and everything an approver must see."""
    return {
        **row,
        "arguments": card.arguments,
        "hidden": list(card.hidden),
        "deceptive": list(card.deceptive),
        "not_validated": card.unvalidated,
        "changes": changes(card.changes),
        "votes": [vote_row(vote) for vote in card.votes],
    }


def changes(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "left_out": difference.left_out,
        "list": [
            {"path": c.path, "kind": c.kind.value, "before": c.before, "after": c.after, "hidden": c.hidden}
            for c in difference.changes
        ],
    }


def vote_row(vote: Vote) -> dict[str, Any]:
    return {
        "approver": vote.approver,
        "verdict": vote.verdict.value,
        "at": iso(vote.at_ms),
        "reason": vote.reason,
        "channel": vote.channel,
    }


def grant_row(grant: Grant) -> dict[str, Any]:
    return {
        "id": grant.id,
        "workflow": grant.workflow,
        "server": grant.server,
        "tool": grant.tool,
        "scope": grant.scope,
        "principal": grant.principal,
        "exact_arguments": grant.arguments_digest is not None,
        "granted_by": list(grant.granted_by),
        "granted_at": iso(grant.granted_at_ms),
        "until": iso(grant.until_ms),
        "approval_id": grant.approval_id,
        "revoked_at": iso(grant.revoked_at_ms) if grant.revoked_at_ms is not None else None,
        "revoked_by": grant.revoked_by or None,
    }


def task_row(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "state": task.state.value,
        "tool": task.wire_name,
        "server": task.server,
        "principal": task.principal,
        "scope": task.scope,
        "message": task.status_message,
        "progress": task.progress,
        "progress_total": task.progress_total,
        "created_at": iso(task.created_ms),
        "updated_at": iso(task.updated_ms),
        "finished_at": iso(task.finished_ms) if task.finished_ms is not None else None,
        "ttl_ms": task.ttl_ms,
        "approval_id": task.approval_id,
        "executed": task.executed.value if task.executed is not None else None,
    }


def status_event(task: Task) -> dict[str, Any]:
    """The data of a `task_status` event: the words of the stateful generation, and our row."""
    shown = {"taskId": task.id, "status": stateful_status(task), "timestamp": iso(task.updated_ms)}
    message = status_message(task)
    return {**shown, **({"statusMessage": message} if message is not None else {}), **task_row(task)}


# What the pages and the API both do: list, show and decide, for a person whose identity is already established.

STATUS_OF: Final = {
    "": 200,
    UNKNOWN_APPROVAL: 404,
    OTHER_ARGUMENTS: 409,
    Refusal.NOT_AN_APPROVER.value: 403,
    Refusal.OWN_CALL.value: 403,
    Refusal.LOGIN_TOO_OLD.value: 403,
    Refusal.ALREADY_DECIDED.value: 409,
    Refusal.ALREADY_VOTED.value: 409,
    Refusal.EXPIRED.value: 410,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One approval in full."""

    held: HeldCall
    card: Card
    row: dict[str, Any]
    may_decide: bool
    starts_on_yes: bool
    """Whether an approval runs the call at once, rather than at its caller's next look."""


class Inbox:
    def __init__(self, approvals: Approvals, records: Records) -> None:
        self.approvals = approvals
        self.records = records

    async def rows(
        self, who: Approver, *, everything: bool, after: str | None, limit: int = PAGE
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Open ones, oldest first; with `everything` the decided ones too."""
        page = await self.records.held_page(who, open_only=not everything, after=after, limit=limit)
        return [self._row(held) for held in page.held], page.after

    def _row(self, held: HeldCall) -> dict[str, Any]:
        workflow = self.approvals.workflow(held.approval.workflow)
        now = rules.as_of(held.approval, workflow, self.records.now_ms())
        return approval_row(held, now, workflow, self.approvals.page_url(now.id))

    async def shown(self, approval_id: str, who: Approver) -> Shown | None:
        held = await self.records.held(who, approval_id)
        if held is None:
            return None
        may, starts = self.approvals.may_decide(held, who), await self._starts_on_yes(who, held)
        row = {**self._row(held), "starts_on_yes": starts}
        return Shown(held, await self.approvals.card(held), row, may, starts)

    async def _starts_on_yes(self, who: Approver, held: HeldCall) -> bool:
        """A request that is no task is held open by its caller."""
        task = await self.records.task(who, held.task_id) if held.task_id is not None else None
        return task is None or await self.approvals.starts_on_yes(task)

    async def decide(
        self,
        who: Approver,
        approval_id: str,
        verdict: Verdict,
        *,
        reason: str,
        channel: str,
        digest: str | None,
        grant: GrantWish | None = None,
    ) -> Ruling:
        return await self.approvals.decide(
            who, approval_id, verdict, reason=reason, channel=channel, digest=digest, grant=grant
        )
