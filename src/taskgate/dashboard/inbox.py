"""Lists, shows and decides approvals for an authenticated person; used by pages and the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from taskgate.core.governance import approval as rules
from taskgate.core.governance.approval import Refusal, Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import Card
from taskgate.dashboard.records import Records
from taskgate.dashboard.rows import approval_row
from taskgate.dashboard.web import PAGE
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.standing_grants import GrantWish, Ruling
from taskgate.ports.approval_channel import OTHER_ARGUMENTS, UNKNOWN_APPROVAL
from taskgate.ports.approval_store import HeldCall

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
    starts_on_approval: bool
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
        may, starts = self.approvals.may_decide(held, who), await self._starts_on_approval(who, held)
        row = {**self._row(held), "starts_on_approval": starts}
        return Shown(held, await self.approvals.card(held), row, may, starts)

    async def _starts_on_approval(self, who: Approver, held: HeldCall) -> bool:
        """A request that is no task is held open by its caller."""
        task = await self.records.task(who, held.task_id) if held.task_id is not None else None
        return task is None or await self.approvals.starts_on_approval(task)

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
