"""Delivery modes: how a call that does not finish at once is returned to its caller."""

from __future__ import annotations

from enum import Enum
from typing import Final

from taskgate.core.generations.generation import Generation
from taskgate.core.globs import Glob
from taskgate.lazy_dataclass import dataclass

KNOWN_TO_RESET: Final = ("claude-code*", "mcp-inspector*", "inspector-*", "goose*")
"""Clients that restart their timeout with every progress notification."""


class ReplyForm(Enum):
    HANDLE = "handle"
    SENTENCE = "sentence"


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    grace_s: float = 8.0
    promote_after_s: float = 45.0
    hold_s: float = 300.0
    heartbeat_s: float = 15.0
    clients: tuple[str, ...] = ()
    latest_s: float = 50.0
    """The same from the arrival of a call, for which its server is started first."""


@dataclass(frozen=True, slots=True)
class Delivery:
    wait_s: float | None
    """How long the reply is held; None if promotion is disabled."""
    beats: bool
    form: ReplyForm


def delivery(
    settings: DeliverySettings, generation: Generation, *, accepts_tasks: bool, has_token: bool, client: str
) -> Delivery:
    """Return the delivery mode of a request that did not itself request a task."""
    if generation is Generation.STATELESS and accepts_tasks:
        return Delivery(settings.grace_s, has_token, ReplyForm.HANDLE)
    if settings.promote_after_s <= 0:
        return Delivery(None, has_token, ReplyForm.SENTENCE)
    if has_token and resets_on_progress(client, settings.clients):
        return Delivery(max(settings.hold_s, settings.promote_after_s), True, ReplyForm.SENTENCE)
    return Delivery(settings.promote_after_s, has_token, ReplyForm.SENTENCE)


def resets_on_progress(client: str, more: tuple[str, ...] = ()) -> bool:
    return any(Glob.compile(pattern).matches(client.lower()) for pattern in (*KNOWN_TO_RESET, *more))
