"""Standing grants: approvals that also cover later calls, until they expire or are revoked."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Approval, State
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.grants import Grant, GrantRefused, grant_from
from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.approval_decisions import GrantRequest
from taskgate.ports.store import Store
from taskgate.store.operations.grants import AddGrant, FindGrants, RevokeGrant

PREFIX: Final = "gr_"


class StandingGrants(msgspec.Struct, eq=False):
    _store: Store
    _plan: Live[Plan]
    _expiries: ApprovalExpiries

    @property
    def current(self) -> tuple[Grant, ...]:
        return self._expiries.standing(self._store.state.known_grants)

    async def load(self) -> None:
        await self._store.ask(FindGrants())
        self._expiries.standing(self._store.state.known_grants)

    def check(self, requested: GrantRequest) -> None:
        """Check a requested grant before the vote is recorded. Raises CallerError."""
        governing = self._plan.value.governing
        if not governing.grants:
            raise CallerError("invalid_params", "Grants are switched off in this configuration.")
        if not 0 < requested.for_ms <= governing.longest_grant_ms:
            raise CallerError(
                "invalid_params", f"A grant may last at most {governing.longest_grant_ms // 60_000} minutes here."
            )

    async def give(self, requested: GrantRequest, approval: Approval) -> Grant | None:
        """Create the grant when the approval is complete. Return None if further approvals are needed."""
        if approval.state not in (State.APPROVED, State.USED):
            return None
        now = self._store.now_ms()
        try:
            grant = grant_from(
                approval,
                PREFIX + ulid(now, secrets.token_bytes(RANDOM_BYTES)),
                now,
                for_ms=requested.for_ms,
                exact_arguments=requested.exact_arguments,
                whole_scope=requested.whole_scope,
                same_script=requested.same_script,
            )
        except GrantRefused as problem:
            raise CallerError("invalid_params", f"No grant: {problem}.") from None
        await self._store.do(AddGrant(grant))
        await self.load()
        return grant

    async def revoke(self, approver: Approver, grant_id: str) -> Grant | None:
        grant = await self._store.do(RevokeGrant(grant_id, approver.id))
        await self.load()
        return grant
