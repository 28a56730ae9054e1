"""A final recheck that always passes, for tests of stores. The gateway never uses it."""

from __future__ import annotations

from taskgate.core.governance.approval import Approval
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import TransitionEvent


def just_go(task: Task, approval: Approval | None, now_ms: int) -> TransitionEvent | None:
    return None
