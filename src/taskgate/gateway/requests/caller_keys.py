"""The keys under which the calls, tasks and used values of a caller are counted, queued and remembered."""

from __future__ import annotations

from typing import Any

from taskgate.core.errors import CallerError
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.meta import meta_of
from taskgate.core.meta_keys import KEY_META
from taskgate.core.tasks.task import Task
from taskgate.gateway.requests.client_label import client_label
from taskgate.gateway.requests.request import Request


def fair_key(request: Request) -> str:
    """The key for fair queueing: the caller's conversation, or its address if it has none."""
    key = request.caller_key
    return request.caller.limit_key if key.startswith(NO_CONVERSATION) else key


def memory_key(request: Request) -> str:
    """The key under which values that the caller used are remembered.

    Empty for an anonymous caller without a conversation: it cannot be distinguished from others, so nothing is remembered.
    """
    principal, session = request.caller.principal, request.session
    if principal != ANONYMOUS:
        return principal
    return session.key if session is not None else client_label(request.params)


def fair_key_of(task: Task) -> str:
    return (task.limited_as or task.caller) if task.caller.startswith(NO_CONVERSATION) else task.caller


def idempotency_key(request: Request) -> str | None:
    key: Any = meta_of(request.params).get(KEY_META)
    if key is None:
        header = request.headers.get(b"idempotency-key")
        key = header.decode("utf-8", "replace") if header is not None else None
    if key is None:
        return None
    if type(key) is not str or not 0 < len(key) <= 255 or "\0" in key:
        raise CallerError("invalid_params", "An idempotency key is a string of 1 to 255 characters without U+0000.")
    return key
