"""A call that waits for an approval: the request, the limits, and the call together with its approval."""

from __future__ import annotations

import msgspec

from taskgate.core.governance.approval import Approval, Binding
from taskgate.core.governance.script_plan import PlannedScript, ScriptOrigin
from taskgate.core.governance.workflow import Workflow


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
