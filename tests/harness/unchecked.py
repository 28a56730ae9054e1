"""A final recheck that always passes, for tests of stores. The gateway never uses it."""

from __future__ import annotations

from taskgate.core.governance.approval import Approval
from taskgate.core.tasks.task import Task


def just_go(task: Task, approval: Approval | None, now_ms: int) -> None:
    return None
