"""One tool of ours: its face, and the use case behind it."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from taskgate.core.catalog.own_tools import Kind, Parameter, ToolFace
from taskgate.core.errors import CallerError
from taskgate.gateway.catalog.views import View
from taskgate.gateway.own_tools.reply import ToolReply
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

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
    delivery_mode = context.tasks.delivery_mode(request)
    limit = settings.promote_after_s if settings.promote_after_s > 0 else settings.hold_s
    if delivery_mode.beats and delivery_mode.wait_s is not None:
        limit = max(limit, delivery_mode.wait_s)
    return min(limit, asked_ms / 1000) if asked_ms is not None else limit


SERVER: Final = Parameter("server", Kind.TEXT, "The name of the server, as list_servers shows it.", required=True)


async def served(context: Context, request: Request, server: str) -> View:
    """The view of this caller, if the server is in it; a server outside its scope looks like none."""
    view = await context.views.view(context.plan, request.caller, request.narrowing)
    if server not in view.subset.servers:
        near = difflib.get_close_matches(server, view.subset.servers, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else " list_servers shows those that there are."
        raise CallerError("unknown_server", f"There is no server {server[:80]!r} here.{hint}")
    if context.catalogs.offer(server) is None:
        await context.catalogs.ready([server])
        problem = context.catalogs.failure(server)
        if context.catalogs.offer(server) is None and problem is not None:
            raise problem
        view = await context.views.view(context.plan, request.caller, request.narrowing)
    return view
