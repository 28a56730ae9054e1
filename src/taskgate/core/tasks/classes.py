"""The class of a tool: what may be done again when contact is lost, and how the class is fixed.

The class is fixed when a call is dispatched and stored with the task, so that a server cannot talk itself into a
more lenient one later. Annotations count only from servers the operator trusts. Silence means `ONCE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class ToolClass(StrEnum):
    """How safe it is to send a call of this tool again without knowing what became of the first one."""

    READ = "read"
    REPEATABLE = "repeatable"
    KEYED = "keyed"
    ONCE = "once"

    @property
    def may_repeat(self) -> bool:
        return self is not ToolClass.ONCE


def fix_class(
    *,
    override: ToolClass | None = None,
    trust_annotations: bool = False,
    annotations: Mapping[str, Any] | None = None,
    key_argument: str | None = None,
) -> ToolClass:
    """The class of one tool: the operator's word first, then trusted hints, then a declared key argument, else
    `ONCE`.
    """
    if override is not None:
        return override
    hints = annotations if trust_annotations and annotations is not None else {}
    if hints.get("readOnlyHint") is True:
        return ToolClass.READ
    if hints.get("idempotentHint") is True:
        return ToolClass.REPEATABLE
    if key_argument:
        return ToolClass.KEYED
    return ToolClass.ONCE
