"""One tool of ours: its face, and the use case behind it.

What one of our own tools answers, before it is put on the wire: text blocks that hold JSON, or a server's own result.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from taskgate.core import wire
from taskgate.core.catalog.own_tools import Kind, Parameter, ToolFace
from taskgate.core.errors import CallerError
from taskgate.core.generations import Generation, complete
from taskgate.core.wire import Members, Raw
from taskgate.gateway.catalog.views import View
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context


@dataclass(frozen=True, slots=True)
class ToolReply:
    """Blocks of content, and whatever else a relayed result carried beside them."""

    blocks: tuple[Raw, ...]
    is_error: bool = False
    rest: Members = field(default_factory=dict)

    def with_blocks(self, more: Iterable[Raw]) -> ToolReply:
        return ToolReply((*self.blocks, *more), self.is_error, self.rest)

    def encoded(self, generation: Generation) -> bytes:
        result = {"content": list(self.blocks), "isError": self.is_error, **self.rest}
        body = wire.encode(result)
        return complete(body) if generation is Generation.STATELESS else body


def json_block(value: Any) -> Raw:
    """A text block that holds JSON, for callers that read nothing but text."""
    return text_block(wire.encode(value).decode("utf-8"))


def text_block(text: str) -> Raw:
    return wire.raw({"type": "text", "text": text})


def saying(*parts: Any, is_error: bool = False) -> ToolReply:
    """Sentences stay sentences; everything else becomes JSON."""
    blocks = tuple(text_block(part) if isinstance(part, str) else json_block(part) for part in parts)
    return ToolReply(blocks, is_error)


def refused(text: str) -> ToolReply:
    return saying(text, is_error=True)


def relayed(result: bytes) -> ToolReply:
    """A server's own result: its blocks keep their bytes, and so does everything beside them."""
    members = wire.members_of(result)
    content = members.pop("content", None)
    is_error = bytes(members.pop("isError", Raw(b"false"))) == b"true"
    members.pop("resultType", None)
    blocks = tuple(wire.elements_of(content)) if content is not None and bytes(content)[:1] == b"[" else ()
    return ToolReply(blocks, is_error, members)


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
    delivery_mode = context.tasks.promotions.delivery_mode(request)
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
