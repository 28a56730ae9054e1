"""Over which link a task talks to its upstream, and what that upstream is told about the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate.core.tasks.task import Task
from taskgate.ports.upstream import CallerFace, LinkKey

RESUMED: Final = "resume-"
EVERYTHING: Final = CallerFace({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}})


@dataclass(frozen=True, slots=True)
class Conversation:
    key: LinkKey
    face: CallerFace
    declared: Mapping[str, Any] | None = None
    """What the caller itself said it can do; None once nobody knows any more."""


def stored_conversation(task: Task) -> Conversation:
    """For a task whose caller is not there (any more): the session in which its upstream knows it, or one of its own."""
    handle = task.upstream_handle
    if handle is None or handle.session_id is None:
        return Conversation(LinkKey(task.principal), EVERYTHING)
    key = LinkKey(task.principal, RESUMED + handle.session_id, resumes=handle.session_id)
    return Conversation(key, EVERYTHING)
