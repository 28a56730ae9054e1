"""Shows and decides held calls, for the console. Implemented by the approvals of the gateway."""

from __future__ import annotations

from typing import Protocol

import msgspec

from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import Card
from taskgate.core.governance.grants import DEFAULT_GRANT_MS, Grant
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.governance.workflow import Workflow
from taskgate.core.tasks.task import Task


class GrantRequest(msgspec.Struct, frozen=True):
    """A standing grant that an approver adds to an approval."""

    for_ms: int = DEFAULT_GRANT_MS
    exact_arguments: bool = False
    whole_scope: bool = False
    same_script: bool = False
    """Only for calls of the script that made the approved call."""


class Ruling(msgspec.Struct, frozen=True):
    """The outcome of a vote. `refusal` is empty if the vote counted; `text` is shown to the voter."""

    text: str
    refusal: str = ""
    held: HeldCall | None = None
    grant: Grant | None = None
    starts: bool | None = None
    """Whether the task starts now rather than at its caller's next poll; None if it is no task, or not approved."""


class ApprovalDecisions(Protocol):
    def workflow(self, name: str) -> Workflow: ...

    def page_url(self, approval_id: str) -> str: ...

    async def card(self, held: HeldCall) -> Card:
        """Everything an approver sees, including the differences from the last approved call of the same tool."""
        ...

    def may_decide(self, held: HeldCall, approver: Approver) -> bool: ...

    async def starts_on_approval(self, task: Task) -> bool:
        """Whether an approval starts the task at once, rather than at the caller's next poll."""
        ...

    async def decide(
        self,
        approver: Approver,
        approval_id: str,
        verdict: Verdict,
        *,
        reason: str = "",
        channel: str = "",
        digest: str | None = None,
        grant: GrantRequest | None = None,
    ) -> Ruling: ...

    async def can_be_recalled(self, approver: Approver, held: HeldCall) -> bool: ...

    async def recall(self, approver: Approver, approval_id: str) -> Ruling: ...
