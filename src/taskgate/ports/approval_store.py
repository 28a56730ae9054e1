"""Where approvals, grants and pinned definitions are kept. The rules about them are in `core.governance`; here they
only become durable.

A change of an approval and what it means for its task happen in one transaction: of two hundred racing decisions
exactly one finds the approval open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import Approval, ApprovalEvent, Binding, Outcome
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks.endings import after_approval
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import TransitionEvent
from taskgate.ports.store_answers import Change, StaleOwner, TooManyOpen


class ApprovalRequest(msgspec.Struct, frozen=True):
    """What people are asked. `arguments` are the exact bytes they agree to."""

    id: str
    workflow: Workflow
    rule: str
    binding: Binding
    caller: str
    wire_name: str
    arguments: bytes
    scope_revision: str = ""
    """Of the set of servers and tools that the caller had when it asked, for the record."""
    limit_key: str = ""
    """Under which name open approvals are counted, where that is not `caller`: a conversation costs nothing to begin."""
    unvalidated: str = ""
    """Why the arguments were not checked against the tool's input schema."""

    @property
    def counted_as(self) -> str:
        return self.limit_key or self.caller


class PendingLimits(msgspec.Struct, frozen=True):
    """How many approvals may be open: of one caller, of all callers without an identity together, and of one tenant's."""

    per_caller: int | None = None
    anonymous: int | None = None
    per_tenant: int | None = None


NO_PENDING_LIMITS = PendingLimits()


class HeldCall(msgspec.Struct, frozen=True):
    """An approval with the call it is about. `task_id` is None for calls that never become tasks (resources,
    prompts).
    """

    approval: Approval
    caller: str
    wire_name: str
    arguments: bytes
    task_id: str | None = None


class HeldPage(msgspec.Struct, frozen=True):
    """`after` is where the next page starts, None at the end."""

    held: tuple[HeldCall, ...]
    after: str | None


class Decided(msgspec.Struct, frozen=True):
    """What a event made of an approval (`core.governance.approval`: changed or refused) and of its task, if it
    has one.
    """

    outcome: Outcome
    held: HeldCall
    change: Change | None = None


class UnknownApproval(msgspec.Struct, frozen=True):
    approval_id: str


class StoredPin(msgspec.Struct, frozen=True):
    """A tool's definition as it was accepted, by whom and when; `by` is empty for first sight."""

    server: str
    tool: str
    pin: Pin
    by: str
    at_ms: int


class StoredReceipt(msgspec.Struct, frozen=True):
    """What a channel gave to find its message about an approval again. `place` names the channel, over restarts too."""

    approval_id: str
    place: str
    workflow: str
    receipt: str


Consequence = Callable[[Task, Approval], TransitionEvent | None]
"""What an approval that has just left `open` means for its task. Called inside the transaction, so it must be quick."""

AuditOf = Callable[[HeldCall, int], AuditEntry]


class ApprovalStore(Protocol):
    """Approvals, grants and pins."""

    async def hold(
        self,
        request: ApprovalRequest,
        *,
        pending: PendingLimits = NO_PENDING_LIMITS,
        audit: AuditEntry | None = None,
        joins: bool = False,
    ) -> HeldCall | TooManyOpen | StaleOwner:
        """Open an approval for a call without a task. Calls with a task are held by `TaskStore.accept`.
        `joins`: an approval of the same call of the same principal that is open, or given and not used, is
        returned instead.
        """
        ...

    async def held(self, approval_id: str) -> HeldCall | None: ...

    async def take_held(self, approval_id: str) -> bool:
        """Whether people hear from us of a held request that is no task: it is ours, or the gateway that had it is dead."""
        ...

    async def held_page(self, *, open_only: bool = True, after: str | None = None, limit: int = 50) -> HeldPage:
        """Oldest first."""
        ...

    async def pending_count(self, caller: str | None = None) -> int: ...

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
        """Apply a vote, a withdrawal, a drift or the passing of time. `at_ms` of the event is ignored: it happens now, by the
        store's clock, or at `not_before_ms` where that is later (an end that has passed by the monotonic clock).
        """
        ...

    async def last_approved(self, server: str, tool: str, *, before: str | None = None) -> HeldCall | None:
        """The newest call of this tool that people approved, for showing what is different this time."""
        ...

    async def add_grant(self, grant: Grant, *, audit: AuditEntry | None = None) -> None: ...

    @property
    def known_grants(self) -> tuple[Grant, ...]:
        """The grants that stand, as they were last read; inside an intent's last look always the present ones."""
        ...

    async def grants(self, *, all_of_them: bool = False) -> tuple[Grant, ...]:
        """Grants that are neither revoked nor over; with `all_of_them`, the others too."""
        ...

    async def revoke_grant(self, grant_id: str, by: str, *, audit: AuditEntry | None = None) -> Grant | None: ...

    async def pins(self, server: str | None = None) -> tuple[StoredPin, ...]: ...

    async def put_pin(
        self, server: str, tool: str, pin: Pin, *, by: str = "", audit: AuditEntry | None = None
    ) -> None: ...

    async def put_first_pin(self, server: str, tool: str, pin: Pin, *, audit: AuditEntry | None = None) -> Pin:
        """Pin a definition seen for the first time, unless there is a pin already; the one that holds."""
        ...

    async def receipts(self, limit: int = 50_000) -> tuple[StoredReceipt, ...]: ...

    async def put_receipt(self, receipt: StoredReceipt) -> None:
        """Remember that people were told there; a new receipt of the same place replaces the old one."""
        ...

    async def drop_receipt(self, approval_id: str, place: str) -> None: ...
