"""Which tools have the gateway's own interface, the task card, which shows a call that became a task in the
conversation.

A host opens an interface for every call of a tool that declares one, before the call ends. The card is therefore
declared for tools whose calls are likely to become tasks, and closes itself if a call returned a result directly.
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
    """Whether a tool without its own interface is listed with the card.

    `held`: its calls may need approval. `promotable`: a call that takes long becomes a task. `takes_long`: its server
    declares that it can, or one did. A session declares whether its host renders apps; lists of stateless callers must
    not depend on that.
    """
    stateful = audience.generation is Generation.STATEFUL
    if mode is TaskCard.OFF or (stateful and not audience.renders_apps):
        return False
    if held or mode is TaskCard.HELD:
        return held
    return promotable and (mode is TaskCard.ALL or stateful or takes_long)
