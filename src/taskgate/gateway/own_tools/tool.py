"""One tool of ours: its face, and the use case behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskgate.core.catalog.own_tools import ToolFace
from taskgate.gateway.own_tools.reply import ToolReply
from taskgate.gateway.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.context import Context

Use = Callable[["Context", Request, dict[str, Any]], Awaitable[ToolReply | bytes]]
"""Answers with blocks, or with a result that passes as it is."""


@dataclass(frozen=True, slots=True)
class OwnTool:
    face: ToolFace
    use: Use
    bare: bool = False
    """Its reply tells events in a form of its own, so none are put behind it."""


def patience_s(context: Context, request: Request, asked_ms: int | None = None) -> float:
    """How long a helper may hold its reply: as asked, but never longer than this caller will wait for one."""
    settings = context.plan.calls.delivery
    rung = context.tasks.rung(request)
    limit = settings.promote_after_s if settings.promote_after_s > 0 else settings.hold_s
    if rung.beats and rung.wait_s is not None:
        limit = max(limit, rung.wait_s)
    return min(limit, asked_ms / 1000) if asked_ms is not None else limit
