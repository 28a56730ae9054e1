"""Definition of an own tool, and the replies that own tools return."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.core.errors import Executed, TaskgateError
from taskgate.core.generations.error_codes import error_data
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import mark_complete
from taskgate.core.wire import Members, Raw
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.promotion import Promotions


class ToolReply(msgspec.Struct, frozen=True):
    """Content blocks, and the other members of a relayed result."""

    blocks: tuple[Raw, ...]
    is_error: bool = False
    rest: Members = msgspec.field(default_factory=dict)

    def with_blocks(self, more: Iterable[Raw]) -> ToolReply:
        return ToolReply((*self.blocks, *more), self.is_error, self.rest)

    def encoded(self, generation: Generation) -> bytes:
        result = {"content": list(self.blocks), "isError": self.is_error, **self.rest}
        body = wire.encode(result)
        return mark_complete(body) if generation is Generation.STATELESS else body


def json_block(value: Any) -> Raw:
    """Return a text block with JSON, for callers that read only text."""
    return text_block(wire.encode(value).decode("utf-8"))


def text_block(text: str) -> Raw:
    return wire.raw({"type": "text", "text": text})


def text_reply(*parts: Any, is_error: bool = False) -> ToolReply:
    """Return a reply with each value as a text block: strings unchanged, everything else as JSON."""
    blocks = tuple(text_block(part) if isinstance(part, str) else json_block(part) for part in parts)
    return ToolReply(blocks, is_error)


def refused(text: str) -> ToolReply:
    return text_reply(text, is_error=True)


def failed(problem: TaskgateError, executed: Executed | None) -> ToolReply:
    """Return an error of the gateway as a reply."""
    meta = wire.raw({"taskgate/error": error_data(problem, secrets.token_hex(8), executed)})
    return ToolReply(refused(problem.message).blocks, True, {"_meta": meta})


def relayed(result: bytes) -> ToolReply:
    """Return a server's result as a reply, byte for byte."""
    members = wire.members_of(result)
    content = members.pop("content", None)
    is_error = bytes(members.pop("isError", Raw(b"false"))) == b"true"
    members.pop("resultType", None)
    blocks = tuple(wire.elements_of(content)) if content is not None and bytes(content)[:1] == b"[" else ()
    return ToolReply(blocks, is_error, members)


Parts = TypeVar("Parts")
"""The parts of the gateway that the tools of one family use."""
Answering = Awaitable[ToolReply | bytes]
"""A reply, or result bytes that are passed unchanged."""


class OwnTool(msgspec.Struct, Generic[Parts], frozen=True):
    face: ToolFace
    use: Callable[[Parts, Request, dict[str, Any]], Answering]
    bare: bool = False
    """Whether its reply contains events in its own form, so that none are appended."""
    has_local_state: bool = False
    """What it stores is in the memory of the gateway that was called, not in the store: later calls must reach the same gateway."""


class BoundTool(msgspec.Struct, frozen=True):
    """A tool bound to its parts."""

    face: ToolFace
    use: Callable[[Request, dict[str, Any]], Answering]
    bare: bool


def bind_tools(tools: Iterable[OwnTool[Parts]], parts: Parts) -> dict[str, BoundTool]:
    return {tool.face.name: BoundTool(tool.face, partial(tool.use, parts), tool.bare) for tool in tools}


class TaskParts(msgspec.Struct, frozen=True):
    """Tasks, and the callers' feeds and inbox."""

    tasks: TaskEngine
    activity: Activity


def max_wait_s(promotions: Promotions, request: Request, asked_ms: int | None = None) -> float:
    """Return how long a helper may delay its reply: as requested, bounded by the caller's own timeout."""
    settings = promotions.plan.value.tasks
    delivery_mode = promotions.delivery_mode(request)
    limit = (settings.promote_after_ms or settings.hold_ms) / 1000
    if delivery_mode.beats and delivery_mode.wait_s is not None:
        limit = max(limit, delivery_mode.wait_s)
    return min(limit, asked_ms / 1000) if asked_ms is not None else limit


SERVER: Final = Parameter(
    "server", ArgumentKind.TEXT, "The name of the server, as list_servers shows it.", required=True
)
