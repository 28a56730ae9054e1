"""Under which names callers, their calls and their tasks are kept, and who may see a task."""

from __future__ import annotations

from typing import Any

from taskgate.core.caller import ANONYMOUS
from taskgate.core.conversation_key import ConversationKey
from taskgate.core.errors import CallerError
from taskgate.core.governance.digest import AmbiguousJson, digest_of_bytes, digest_of_json
from taskgate.core.meta import META, meta_of
from taskgate.core.tasks.task import Task
from taskgate.gateway.requests.request import NO_CONVERSATION, Request

CLIENT_META = "taskgate/client"
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


def caller_key(request: Request) -> str:
    """Whose lists, events and inboxes these are: the principal's, or for anonymous callers their conversation's.

    An anonymous stateless caller that does not say which client it is has no conversation: what it starts is found by its
    unguessable id alone, and nobody else is told of it.
    """
    if request.caller.principal != ANONYMOUS:
        return request.caller.principal
    if request.session is not None:
        return request.session.key
    return _client_name(request) or request.own_key


def conversation_key(request: Request) -> ConversationKey:
    """Which conversation of its caller a request belongs to: what that causes is told there while it goes on."""
    if request.session is not None:
        return request.session.conversation
    name = _client_name(request) if request.caller.principal != ANONYMOUS else ""
    return ConversationKey(caller_key(request), name)


def asking_stream(request: Request) -> str:
    """The name of the caller's conversation, for links to remember who has calls open on them."""
    if request.session is not None:
        return request.session.stream
    meta = request.params.get(META)
    if type(meta) is dict and CLIENT_META in meta:
        return conversation_key(request).stream
    # The usual plain call, in as few steps as may be.
    return request.own_key if request.caller.principal == ANONYMOUS else request.caller.principal


def _client_name(request: Request) -> str:
    """What a stateless client calls itself, or nothing."""
    client = meta_of(request.params).get(CLIENT_META)
    name = "".join(letter for letter in client[:200] if letter.isprintable()) if type(client) is str else ""
    return f"client:{name}" if name else ""


def fair_key(request: Request) -> str:
    """As whose turn a request waits in line: its conversation's, or that of everybody at its address."""
    key = caller_key(request)
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
