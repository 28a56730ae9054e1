"""Which tools have the gateway's own interface, the task card: it shows a call that became a task, where the conversation is.

A host opens an interface for every call of a tool that declares one, before it knows how the call ends. So the card is
declared where calls are likely to become tasks, and asks to be closed again when a call was answered as any other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from taskgate.core.catalog.rendering import Audience
from taskgate.core.generations.generation import Generation

CARD_URI: Final = "ui://taskgate/task-card.html"


class TaskCard(StrEnum):
    """`apps.task_card`."""

    AUTO = "auto"
    ALL = "all"
    HELD = "held"
    OFF = "off"


def has_card(mode: TaskCard, audience: Audience, *, held: bool, promotable: bool, takes_long: bool) -> bool:
    """Whether a tool without an interface of its own is listed with the card.

    `held`: its calls may wait for people. `promotable`: a call that takes long becomes a task. `takes_long`: its server says that
    it can, or one did. A session says whether its host renders apps; lists of stateless callers must not depend on that.
    """
    stateful = audience.generation is Generation.STATEFUL
    if mode is TaskCard.OFF or (stateful and not audience.renders_apps):
        return False
    if held or mode is TaskCard.HELD:
        return held
    return promotable and (mode is TaskCard.ALL or stateful or takes_long)
