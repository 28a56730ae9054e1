"""The server's own tasks in what it says: read for ourselves, and taken out of what callers see.

A caller knows a task of ours, never the task that a server made of our call; on a shared link that may be another caller's.
"""

from __future__ import annotations

from typing import Any

from taskgate.core.generations import RELATED_TASK
from taskgate.core.questions import SAMPLE, spec_shapes, without_related_task
from taskgate.core.wire import Message, Raw, meta_of


def related_task(params: Any) -> str | None:
    """The id of the server's task that a message names."""
    related = meta_of(params).get(RELATED_TASK)
    task_id = related.get("taskId") if type(related) is dict else None
    return task_id if type(task_id) is str else None


def shown_params(message: Message) -> Raw | None:
    """The params as they may be handed on."""
    raw = spec_shapes(message.raw_params) if message.method == SAMPLE else message.raw_params
    if raw is None or RELATED_TASK not in meta_of(message.params):
        return raw
    return without_related_task(raw, RELATED_TASK)
