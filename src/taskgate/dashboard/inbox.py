"""Lists, shows and decides approvals for an authenticated person; used by pages and the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from taskgate.core.governance import approval as rules
from taskgate.core.governance.approval import PAGE_CHANNEL, Refusal, Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.held_call import HeldCall
from taskgate.dashboard.records import Records
from taskgate.dashboard.rows import approval_row, script_difference, script_plan, vote_row
from taskgate.dashboard.script_tree import script_tree
from taskgate.dashboard.tool_facts import description_of, risks_of, tool_entry
from taskgate.dashboard.web import PAGE
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.approval_channel import OTHER_ARGUMENTS, UNKNOWN_APPROVAL
from taskgate.ports.approval_decisions import ApprovalDecisions, GrantRequest, Ruling
from taskgate.ports.listed_tools import ListedTools
from taskgate.ports.pinned_definitions import PinnedDefinitions
from taskgate.replies.approvals import ApprovalDetail, ApprovalRow
from taskgate.replies.differences import changes_in
from taskgate.replies.fields import extended

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
_GRANT_MS: Final = 60 * 60_000
"""Duration of a grant that is given on a page, where the configuration allows it to be that long."""


class Inbox(msgspec.Struct, eq=False, kw_only=True):
    approvals: ApprovalDecisions
    records: Records
    catalogs: ListedTools
    pins: PinnedDefinitions
    plan: Live[Plan]
    polled_ago_s: Callable[[str], float | None]

    async def rows(
        self, user: Approver, *, everything: bool, after: str | None, limit: int = PAGE
    ) -> tuple[list[ApprovalRow], str | None]:
        """Open approvals, oldest first, and where the next page starts; `everything` includes closed ones."""
        page = await self.records.held_page(user, open_only=not everything, after=after, limit=limit)
        return [self._row(held) for held in page.held], page.after

    def _row(self, held: HeldCall) -> ApprovalRow:
        workflow = self.approvals.workflow(held.approval.workflow)
        now = rules.as_of(held.approval, workflow, self.records.now_ms())
        return approval_row(held, now, workflow, self.approvals.page_url(now.id), batchable=self._is_batchable(held))

    def _is_batchable(self, held: HeldCall) -> bool:
        """Whether identical calls may be decided together: only if the tool declares that it is not destructive."""
        bound = held.approval.binding
        risks = risks_of(tool_entry(self.catalogs, bound.server, bound.tool))
        return bool({"reads_only", "writes"} & set(risks))

    async def shown(self, approval_id: str, user: Approver) -> ApprovalDetail | None:
        """One approval in full: its row, everything on its card, and what approving it leads to."""
        held = await self.records.held(user, approval_id)
        if held is None:
            return None
        governing = self.plan.value.governing
        row = self._row(held)
        task = await self.records.task(user, held.task_id) if held.task_id is not None else None
        starts = task is None or await self.approvals.starts_on_approval(task)
        entry = tool_entry(self.catalogs, row.server, row.name) if row.kind == "tool" else None
        grantable = governing.grants and row.kind == "tool"
        card = await self.approvals.card(held)
        return extended(
            ApprovalDetail,
            row,
            arguments=card.arguments,
            script=card.script,
            plan=script_plan(card.plan) if card.plan is not None else None,
            script_calls=await script_tree(self.records, task),
            hidden=card.hidden,
            deceptive=card.deceptive,
            not_validated=card.unvalidated,
            changes=changes_in(card.changes) if card.changes is not None else None,
            script_changes=script_difference(card.script_changes) if card.script_changes is not None else None,
            votes=[vote_row(vote) for vote in card.votes],
            may_decide=self.approvals.may_decide(held, user),
            starts_on_approval=starts,
            starts_on_yes=starts,
            polled_ago_s=self.polled_ago_s(held.task_id) if held.task_id is not None else None,
            description=description_of(entry),
            risks=risks_of(entry),
            grant_minutes=min(_GRANT_MS, governing.longest_grant_ms) // 60_000 if grantable else None,
            unaccepted=self.pins.changes_of(row.server, row.name),
        )

    async def decide(
        self,
        user: Approver,
        approval_id: str,
        verdict: Verdict,
        *,
        reason: str,
        channel: str,
        digest: str | None,
        grant: GrantRequest | None = None,
    ) -> Ruling:
        return await self.approvals.decide(
            user, approval_id, verdict, reason=reason, channel=channel, digest=digest, grant=grant
        )

    async def recall(self, user: Approver, approval_id: str) -> Ruling:
        return await self.approvals.recall(user, approval_id)

    async def can_be_recalled(self, user: Approver, approval_id: str) -> bool:
        held = await self.records.held(user, approval_id)
        return held is not None and await self.approvals.can_be_recalled(user, held)

    def grant_for(self, extent: str) -> GrantRequest | None:
        """The standing grant that the form of an approval requests: `exact`, `tool` or `scope`; None for anything else."""
        if extent not in ("exact", "tool", "scope"):
            return None
        duration_ms = min(_GRANT_MS, self.plan.value.governing.longest_grant_ms)
        return GrantRequest(duration_ms, exact_arguments=extent == "exact", whole_scope=extent == "scope")

    async def decide_together(
        self, user: Approver, ids: Sequence[str], verdict: Verdict, *, reason: str, digest: str
    ) -> int | None:
        """Decide identical approvals alike; the number that was not decided. None if they must be decided one by one."""
        first = await self._row_for(user, ids[0])
        if first is None or not first.batchable:
            return None
        refused = 0
        for approval_id in ids:
            row = await self._row_for(user, approval_id)
            if row is None or same_call(row) != same_call(first):
                refused += 1
                continue
            ruling = await self.decide(user, approval_id, verdict, reason=reason, channel=PAGE_CHANNEL, digest=digest)
            refused += bool(ruling.refusal)
        return refused

    async def _row_for(self, user: Approver, approval_id: str) -> ApprovalRow | None:
        held = await self.records.held(user, approval_id)
        return self._row(held) if held is not None else None


def same_call(row: ApprovalRow) -> tuple[str, ...]:
    """Equal for approvals of the same call: caller, tool, arguments, definition and workflow."""
    return (
        row.requester,
        row.scope,
        row.server,
        row.name,
        row.kind,
        row.arguments_digest,
        row.definition_digest,
        row.workflow,
    )
