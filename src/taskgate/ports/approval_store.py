"""The port through which approvals, grants and pinned definitions are stored. The rules are in `core.governance`.

An approval and its task change in one transaction, so exactly one of many concurrent decisions finds the approval open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.pin import Pin
from taskgate.core.governance.approval import Approval, ApprovalEvent, Binding, Outcome
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.script_plan import PlannedScript, ScriptOrigin
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks.endings import after_approval
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import TransitionEvent
from taskgate.ports.store_answers import Change, StaleOwner, TooManyOpen


class ApprovalRequest(msgspec.Struct, frozen=True):
    """A request for an approval. `arguments` are the exact bytes that are approved."""

    id: str
    workflow: Workflow
    rule: str
    binding: Binding
    caller: str
    wire_name: str
    arguments: bytes
    scope_revision: str = ""
    """The revision of the caller's scope at the time of the request, for the audit log."""
    limit_key: str = ""
    """The key by which open approvals are counted, if it is not `caller`: a caller can begin any number of conversations."""
    unvalidated: str = ""
    """Why the arguments were not validated against the tool's input schema."""
    plan: PlannedScript | None = None
    """What a script would call, if the call runs one."""
    from_script: ScriptOrigin | None = None
    """The script that made the call, if one did."""

    @property
    def counted_as(self) -> str:
        return self.limit_key or self.caller


class PendingLimits(msgspec.Struct, frozen=True):
    """How many approvals may be open: per caller, for all callers without an identity together, and per tenant."""

    per_caller: int | None = None
    anonymous: int | None = None
    per_tenant: int | None = None


NO_PENDING_LIMITS = PendingLimits()


class HeldCall(msgspec.Struct, frozen=True):
    """An approval with its call. `task_id` is None for calls that never become tasks (resources, prompts)."""

    approval: Approval
    caller: str
    wire_name: str
    arguments: bytes
    task_id: str | None = None


class HeldPage(msgspec.Struct, frozen=True):
    """A page of held calls. `after` is the position of the next page, None at the end."""

    held: tuple[HeldCall, ...]
    after: str | None


class Decided(msgspec.Struct, frozen=True):
    """The outcome of an event for an approval (`core.governance.approval`: changed or refused), and the change of its task."""

    outcome: Outcome
    held: HeldCall
    change: Change | None = None


class UnknownApproval(msgspec.Struct, frozen=True):
    approval_id: str


class StoredPin(msgspec.Struct, frozen=True):
    """A tool's definition as it was accepted, with the approver and the time; `by` is empty if it was pinned on first use."""

    server: str
    tool: str
    pin: Pin
    by: str
    at_ms: int


class FirstPin(NamedTuple):
    """A definition that is seen for the first time, and the record of it."""

    server: str
    tool: str
    pin: Pin
    audit: AuditEntry | None = None


class StoredReceipt(msgspec.Struct, frozen=True):
    """The data with which a channel finds its message about an approval. `place` identifies the channel, also after a restart."""

    approval_id: str
    place: str
    workflow: str
    receipt: str


Consequence = Callable[[Task, Approval], TransitionEvent | None]
"""Returns the event for the task of an approval that has just been decided. Called inside the transaction; must be quick."""

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

        `joins`: return the principal's open or unused approval of the same call instead, if there is one.
        """
        ...

    async def held(self, approval_id: str) -> HeldCall | None: ...

    async def take_held(self, approval_id: str) -> bool:
        """Return whether this gateway notifies approvers of a held request without a task: it owns it, or the owner is dead."""
        ...

    async def held_page(
        self, *, open_only: bool = True, after: str | None = None, limit: int = 50, tenant: str | None = None
    ) -> HeldPage:
        """Return held calls, oldest first: all of them, or those of the callers of a tenant."""
        ...

    async def pending_count(self, caller: str | None = None, *, tenant: str | None = None) -> int:
        """The number of open approvals: all of them, or those of one caller or of all callers of a tenant."""
        ...

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
        """Apply a vote, a withdrawal, a drift or an expiry. `at_ms` of the event is replaced by the store's time, or by
        `not_before_ms` if that is later (a deadline that has passed by the monotonic clock).
        """
        ...

    async def last_approved(self, server: str, tool: str, *, before: str | None = None) -> HeldCall | None:
        """Return the latest approved call of this tool, to show what differs from it."""
        ...

    async def add_grant(self, grant: Grant, *, audit: AuditEntry | None = None) -> None: ...

    @property
    def known_grants(self) -> tuple[Grant, ...]:
        """The valid grants as last read; inside the recheck of an intent always the current ones."""
        ...

    async def grants(self, *, all_of_them: bool = False) -> tuple[Grant, ...]:
        """Return the valid grants; with `all_of_them`, revoked and expired ones too."""
        ...

    async def revoke_grant(self, grant_id: str, by: str, *, audit: AuditEntry | None = None) -> Grant | None: ...

    async def pins(self, server: str | None = None) -> tuple[StoredPin, ...]: ...

    async def accepted_definitions(self, server: str, tool: str) -> tuple[StoredPin, ...]:
        """Return the definitions of a tool that were accepted, the current one first and at most ten before it."""
        ...

    async def put_pin(
        self, server: str, tool: str, pin: Pin, *, by: str = "", audit: AuditEntry | None = None
    ) -> None: ...

    async def put_first_pins(self, first: Sequence[FirstPin]) -> tuple[Pin, ...]:
        """Pin definitions on first use, except those that have a pin; return the pins that are stored, in this order."""
        ...

    async def receipts(self, limit: int = 50_000) -> tuple[StoredReceipt, ...]: ...

    async def put_receipt(self, receipt: StoredReceipt) -> None:
        """Store that a notification was sent to this place, replacing an earlier receipt of it."""
        ...

    async def drop_receipt(self, approval_id: str, place: str) -> None: ...
