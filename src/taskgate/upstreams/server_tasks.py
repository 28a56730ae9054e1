"""References to a server's own tasks in its messages.

A caller sees only the gateway's tasks. References to tasks of the server are used here and removed from what callers
receive; on a shared link they may belong to another caller.
"""

from __future__ import annotations

from typing import Any

from taskgate.core.generations.generation import RELATED_TASK
from taskgate.core.meta import meta_of
from taskgate.core.questions.question import SAMPLE, without_related_task
from taskgate.core.sampling.spec_shapes import spec_shapes
from taskgate.core.wire import Message, Raw


def related_task(params: Any) -> str | None:
    """Return the id of the server's task that a message refers to."""
    related = meta_of(params).get(RELATED_TASK)
    task_id = related.get("taskId") if type(related) is dict else None
    return task_id if type(task_id) is str else None


def shown_params(message: Message) -> Raw | None:
    """Return the params without references to tasks of the server."""
    raw = spec_shapes(message.raw_params) if message.method == SAMPLE else message.raw_params
    if raw is None or RELATED_TASK not in meta_of(message.params):
        return raw
    return without_related_task(raw, RELATED_TASK)
