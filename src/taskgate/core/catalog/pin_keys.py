"""Keys under which pins and the quarantine store interfaces and skills, by their own URIs.

The key of a tool is its name. The prefix of an interface is the one that rules use for resources.
"""

from __future__ import annotations

from typing import Final

RESOURCE_PREFIX: Final = "resource:"
SKILL_PREFIX: Final = "skill:"
RISK_PREFIX: Final = "risk:"
"""Of what a person has stated about the risk of a tool."""


def resource_key(uri: str) -> str:
    return f"{RESOURCE_PREFIX}{uri}"


def skill_key(uri: str) -> str:
    return f"{SKILL_PREFIX}{uri}"


def risk_key(tool: str) -> str:
    return f"{RISK_PREFIX}{tool}"


def kind_of(key: str) -> str:
    """Return what a key refers to, as a word for the console."""
    if key.startswith(RESOURCE_PREFIX):
        return "interface"
    return "skill" if key.startswith(SKILL_PREFIX) else "tool"
