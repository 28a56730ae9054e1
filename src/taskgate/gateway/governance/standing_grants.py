"""The grants that stand: known in memory for every call, kept in the store, given with a yes and taken back at any time."""

from __future__ import annotations

import secrets
from typing import Final

from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Approval, Approver, State
from taskgate.core.governance.grants import Grant, NoGrant, grant_from
from taskgate.core.tasks import ids
from taskgate.gateway.governance.ruling import GrantWish
from taskgate.gateway.plan.live import Live
from taskgate.gateway.plan.plan import Plan
from taskgate.ports.store import Store

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
                PREFIX + ids.ulid(now, secrets.token_bytes(ids.RANDOM_BYTES)),
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
