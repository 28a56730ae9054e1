"""The two generations of MCP and the revisions of each.

*Stateful* is 2025-11-25 and earlier: a handshake opens a session, and the server may send requests. *Stateless* is
2026-07-28: every request carries an envelope, there is no session, and questions are returned inside results. All
differences between the generations are in this package; the rest of the code works with calls, questions and tasks.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Generation(Enum):
    STATEFUL = "stateful"
    STATELESS = "stateless"

    # Links are looked up by it in every call, and members are singletons.
    __hash__ = object.__hash__

    @property
    def other(self) -> Generation:
        return Generation.STATELESS if self is Generation.STATEFUL else Generation.STATEFUL


STATEFUL: Final = Generation.STATEFUL
STATELESS: Final = Generation.STATELESS
"""For code on the path of every call: on Python 3.11, looking up a member of an Enum costs as much as calling a function."""

NEWEST_STATEFUL: Final = "2025-11-25"
STATEFUL_REVISIONS: Final = (NEWEST_STATEFUL, "2025-06-18", "2025-03-26")
OLD_STDIO_REVISION: Final = "2024-11-05"
NEWEST_STATELESS: Final = "2026-07-28"
STATELESS_REVISIONS: Final = (NEWEST_STATELESS,)

IMMEDIATE_RESPONSE: Final = "io.modelcontextprotocol/model-immediate-response"
"""Key of `_meta` for a text for the model in a task handle."""
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
TASK_NOTIFICATIONS: Final = frozenset({"notifications/tasks/status", "notifications/tasks"})
"""Notifications of a server about its own tasks, in either generation."""
PROGRESS_TOKEN: Final = "progressToken"


def generation_of(revision: str) -> Generation | None:
    """Return the generation of a revision, or None for an unsupported one."""
    if revision in STATELESS_REVISIONS:
        return Generation.STATELESS
    if revision in STATEFUL_REVISIONS or revision == OLD_STDIO_REVISION:
        return Generation.STATEFUL
    return None
