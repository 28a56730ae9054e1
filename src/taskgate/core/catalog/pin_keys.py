"""Under which names pins and the quarantine know what is not a tool: interfaces and skills, by their own addresses.

A tool goes by its name. The prefix of an interface is the one that rules use for resources.
"""

from __future__ import annotations

from typing import Final

RESOURCE_PREFIX: Final = "resource:"
SKILL_PREFIX: Final = "skill:"


def resource_key(uri: str) -> str:
    return f"{RESOURCE_PREFIX}{uri}"


def skill_key(uri: str) -> str:
    return f"{SKILL_PREFIX}{uri}"


def kind_of(key: str) -> str:
    """What a pinned name stands for, in a word for people."""
    if key.startswith(RESOURCE_PREFIX):
        return "interface"
    return "skill" if key.startswith(SKILL_PREFIX) else "tool"
