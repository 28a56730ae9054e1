"""How a call becomes a task: queued, held for approval, or promoted while it is in flight.

The gateway describes the call as a `Task` without times and owner. The store sets those by its own clock, in the
transaction that makes the task durable. Only a promoted call has been sent at that time.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec.structs import replace

from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AWAITING_APPROVAL, Attempt, Task


class AlreadySent(msgspec.Struct, frozen=True):
    """A call that was in flight when it was promoted: when and to which server it was sent.

    `request_state`: the message was a later round, with the answers to an earlier round and this state of the server.
    """

    byte_hash: str
    upstream: str
    sent_at_ms: int
    request_state: bytes | None = None


class HeldForApproval(msgspec.Struct, frozen=True):
    """A call that needs an approval first."""

    approval_id: str
    approval_timeout_ms: int


TaskOrigin = AlreadySent | HeldForApproval | None


def create(draft: Task, origin: TaskOrigin, *, now_ms: int, owner: str, fence: int) -> Task:
    """Return the first durable value of a task."""
    task = replace(draft, created_ms=now_ms, updated_ms=now_ms, owner=owner, fence=fence, revision=1)
    match origin:
        case AlreadySent(byte_hash, upstream, sent_at_ms, request_state):
            attempt = Attempt(number=1, fence=fence, byte_hash=byte_hash, upstream=upstream, sent_at_ms=sent_at_ms)
            deadline = sent_at_ms + task.execution_budget_ms
            return replace(
                task,
                state=TaskState.RUNNING,
                last_attempt=attempt,
                sends=1,
                unanswered_sends=1,
                execution_deadline_ms=deadline,
                request_state=request_state,
            )
        case HeldForApproval(approval_id, approval_timeout_ms):
            return replace(
                task,
                state=TaskState.AWAITING_APPROVAL,
                approval_id=approval_id,
                approval_deadline_ms=now_ms + approval_timeout_ms,
                status_message=task.status_message or AWAITING_APPROVAL,
            )
        case None:
            return replace(task, state=TaskState.QUEUED)
        case _:
            assert_never(origin)
