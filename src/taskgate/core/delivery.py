"""Delivery modes: how a call that does not finish at once is returned to its caller."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from taskgate.core.generations.generation import Generation
from taskgate.core.globs import Glob
from taskgate.core.settings.tasks import Tasks

KNOWN_TO_RESET: Final = ("claude-code*", "mcp-inspector*", "inspector-*", "goose*")
"""Clients that restart their timeout with every progress notification."""


class ReplyForm(Enum):
    HANDLE = "handle"
    SENTENCE = "sentence"


class Delivery(msgspec.Struct, frozen=True):
    wait_s: float | None
    """How long the reply is held; None if promotion is disabled."""
    beats: bool
    form: ReplyForm


def delivery(settings: Tasks, generation: Generation, *, accepts_tasks: bool, has_token: bool, client: str) -> Delivery:
    """Return the delivery mode of a request that did not itself request a task."""
    if generation is Generation.STATELESS and accepts_tasks:
        return Delivery(settings.grace_ms / 1000, has_token, ReplyForm.HANDLE)
    if settings.promote_after_ms == 0:
        return Delivery(None, has_token, ReplyForm.SENTENCE)
    if has_token and resets_on_progress(client, settings.clients):
        return Delivery(max(settings.hold_ms, settings.promote_after_ms) / 1000, True, ReplyForm.SENTENCE)
    return Delivery(settings.promote_after_ms / 1000, has_token, ReplyForm.SENTENCE)


def resets_on_progress(client: str, more: tuple[str, ...] = ()) -> bool:
    return any(Glob.compile(pattern).matches(client.lower()) for pattern in (*KNOWN_TO_RESET, *more))
