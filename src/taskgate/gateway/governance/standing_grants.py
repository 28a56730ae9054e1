"""The grants that stand: known in memory for every call, kept in the store, given with a yes and taken back at any time.

What a person may say about a held call, and the words they hear back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Approval, Approver, Refusal, State, Verdict, Workflow
from taskgate.core.governance.decision import DEFAULT_GRANT_MS, Grant, NoGrant, grant_from
from taskgate.core.tasks.task import RANDOM_BYTES, ulid
from taskgate.gateway.plan.plan import Live, Plan
from taskgate.ports.approval_store import HeldCall
from taskgate.ports.store import Store


@dataclass(frozen=True, slots=True)
class GrantWish:
    """ "And the next ones too": what an approver may add to a yes."""

    for_ms: int = DEFAULT_GRANT_MS
    exact_arguments: bool = False
    whole_scope: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of a person's word. `refusal` is empty when it counted; `text` is for that person."""

    text: str
    refusal: str = ""
    held: HeldCall | None = None
    grant: Grant | None = None


_WHY: Final[Mapping[Refusal, str]] = {
    Refusal.ALREADY_VOTED: "You have approved this call already. Somebody else must agree too.",
    Refusal.NOT_AN_APPROVER: "You may not decide on this call.",
    Refusal.OWN_CALL: "You asked for this call yourself, so somebody else must decide. `taskgate token new NAME` makes a "
    "token for an approver; `self_approval: true` in the workflow lets people decide on their own calls.",
    Refusal.LOGIN_TOO_OLD: "Approving this needs a fresh login. Log in to the pages again, then decide there.",
    Refusal.EXPIRED: "Too late: nobody had decided in time, so the call was refused.",
    Refusal.NOT_APPROVED: "This call is not approved.",
    Refusal.NOT_DUE: "It is not due yet.",
}


def refused_text(why: Refusal, approval: Approval) -> str:
    if why is not Refusal.ALREADY_DECIDED:
        return _WHY[why]
    by = ", ".join(dict.fromkeys(vote.approver for vote in approval.votes))
    state = "approved and sent" if approval.state is State.USED else approval.state.value
    return f"This call is {state} already{f' (by {by})' if by else ''}."


def accepted_text(approval: Approval, workflow: Workflow, grant: Grant | None) -> str:
    if approval.state is State.DENIED:
        return "Denied. The tool will not run."
    if approval.state is State.OPEN:
        yes = sum(1 for vote in approval.votes if vote.verdict is Verdict.APPROVE)
        return f"Noted: {yes} of {workflow.approvals_needed} approvals."
    return "Approved." if grant is None else f"Approved, and granted until it is revoked or over (grant {grant.id})."


PREFIX: Final = "gr_"


class StandingGrants:
    def __init__(self, store: Store, plan: Live[Plan]) -> None:
        self._store = store
        self._plan = plan

    @property
    def current(self) -> tuple[Grant, ...]:
        return self._store.known_grants

    async def load(self) -> None:
        await self._store.grants()

    def check(self, wish: GrantWish) -> None:
        """Refuse a wish before anything is decided by it."""
        governing = self._plan.value.governing
        if not governing.grants:
            raise CallerError("invalid_params", "Grants are switched off in this configuration.")
        if not 0 < wish.for_ms <= governing.longest_grant_ms:
            raise CallerError(
                "invalid_params", f"A grant may last at most {governing.longest_grant_ms // 60_000} minutes here."
            )

    async def give(self, wish: GrantWish, approval: Approval) -> Grant | None:
        """Only once everybody needed has agreed."""
        if approval.state not in (State.APPROVED, State.USED):
            return None
        now = self._store.now_ms()
        try:
            grant = grant_from(
                approval,
                PREFIX + ulid(now, secrets.token_bytes(RANDOM_BYTES)),
                now,
                for_ms=wish.for_ms,
                exact_arguments=wish.exact_arguments,
                whole_scope=wish.whole_scope,
            )
        except NoGrant as problem:
            raise CallerError("invalid_params", f"No grant: {problem}.") from None
        await self._store.add_grant(grant)
        await self.load()
        return grant

    async def revoke(self, who: Approver, grant_id: str) -> Grant | None:
        grant = await self._store.revoke_grant(grant_id, who.id)
        await self.load()
        return grant
