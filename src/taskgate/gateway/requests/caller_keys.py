"""Under which names callers, their calls and their tasks are kept, and who may see a task."""

from __future__ import annotations

from typing import Any

from taskgate.core.errors import CallerError
from taskgate.core.governance.digest import AmbiguousJson, digest_of_bytes, digest_of_json
from taskgate.core.tasks.task import Task
from taskgate.core.wire import meta_of
from taskgate.gateway.requests.request import NO_CONVERSATION, Request

KEY_META = "taskgate/idempotencyKey"


def arguments_digest(arguments: bytes) -> str:
    """What was asked, as one number: equal for equal arguments; of the bytes where they could be read in two ways."""
    try:
        return digest_of_json(arguments)
    except AmbiguousJson:
        return digest_of_bytes(arguments)


def unknown_task() -> CallerError:
    return CallerError("unknown_task", "There is no such task, or it is no longer kept.")


def may_see(request: Request, task: Task) -> bool:
    """Bound to the principal; without authentication the unguessable id is the proof."""
    return task.principal == request.caller.principal


def fair_key(request: Request) -> str:
    """As whose turn a request waits in line: its conversation's, or that of everybody at its address."""
    key = request.caller_key
    return request.caller.limit_key if key.startswith(NO_CONVERSATION) else key


def fair_key_of(task: Task) -> str:
    return (task.limited_as or task.caller) if task.caller.startswith(NO_CONVERSATION) else task.caller


def idempotency_key(request: Request) -> str | None:
    key: Any = meta_of(request.params).get(KEY_META)
    if key is None:
        header = request.headers.get(b"idempotency-key")
        key = header.decode("utf-8", "replace") if header is not None else None
    if key is None:
        return None
    if type(key) is not str or not 0 < len(key) <= 255:
        raise CallerError("invalid_params", "An idempotency key is a string of 1 to 255 characters.")
    return key
