"""Expiry of approvals and grants: by the store's clock or by the monotonic clock, whichever is first.

The store's clock can be set back, which would prolong what people agreed to. The monotonic clock stops while the machine sleeps,
which would do the same. So both clocks are checked. An approval or grant that this process first sees after a clock was set
expires by the store's clock alone.
"""

from __future__ import annotations

from taskgate import clock
from taskgate.core.governance.approval import Approval, State
from taskgate.core.governance.grants import Grant
from taskgate.ports.store import Store


class ApprovalExpiries:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._approvals = clock.Expiries[tuple[str, State]]()
        self._grants = clock.Expiries[str]()

    def opened(self, approval_id: str, timeout_ms: int) -> None:
        """Start the timeout of an approval that was just requested."""
        self._approvals.note((approval_id, State.OPEN), timeout_ms / 1000)

    def note(self, approval: Approval) -> None:
        """Register the current state: open, approved and unused, or closed."""
        until_ms = _until_ms(approval)
        for state in (State.OPEN, State.APPROVED):
            if state is not approval.state or until_ms is None:
                self._approvals.forget((approval.id, state))
        if until_ms is not None:
            self._approvals.note((approval.id, approval.state), self._left_s(until_ms))

    def passed_ms(self, approval: Approval) -> int:
        """Return the approval's expiry by the store's clock if either clock has passed it, otherwise 0.

        No event on the approval may have an earlier time.
        """
        until_ms = _until_ms(approval)
        if until_ms is None:
            return 0
        return until_ms if self._approvals.passed((approval.id, approval.state), self._left_s(until_ms)) else 0

    def drop(self, approval_id: str) -> None:
        """Remove a deleted approval."""
        for state in (State.OPEN, State.APPROVED):
            self._approvals.forget((approval_id, state))

    def is_unexpired(self, approval: Approval) -> bool:
        """Return whether the approval has not expired by the monotonic clock."""
        left_s = self._approvals.left_s((approval.id, approval.state))
        return left_s is not None and left_s > 0

    def over(self) -> list[str]:
        """Return the approvals that have expired by the monotonic clock."""
        return [approval_id for approval_id, _ in self._approvals.over()]

    def standing(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Return the grants that have not expired. Also called on the store's thread."""
        if not grants:
            return grants
        return tuple(grant for grant in grants if not self._grants.passed(grant.id, self._left_s(grant.until_ms)))

    def _left_s(self, until_ms: int) -> float:
        return (until_ms - self._store.now_ms()) / 1000


def _until_ms(approval: Approval) -> int | None:
    if approval.state is State.OPEN:
        return approval.binding.expires_at_ms
    return approval.valid_until_ms if approval.state is State.APPROVED else None
