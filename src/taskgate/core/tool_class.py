"""The class of a tool: whether a call may be sent again when its outcome is not known.

The class is determined when a call is dispatched and stored with the task, so a server cannot change it for a call in
progress. A tool's annotations count only if the operator trusts the server. The default is `ONCE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class ToolClass(StrEnum):
    """How safe it is to send a call of this tool again if the outcome of the first one is not known."""

    READ = "read"
    REPEATABLE = "repeatable"
    KEYED = "keyed"
    ONCE = "once"

    @property
    def may_repeat(self) -> bool:
        return self is not ToolClass.ONCE


def classify_tool(
    *,
    override: ToolClass | None = None,
    trust_annotations: bool = False,
    annotations: Mapping[str, Any] | None = None,
    key_argument: str | None = None,
) -> ToolClass:
    """Return the class of a tool: the operator's setting, else trusted annotations, else a declared key argument, else
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
