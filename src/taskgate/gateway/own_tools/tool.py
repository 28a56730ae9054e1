"""One tool of ours, and the requests that it makes on behalf of its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace
from taskgate.core.event_log import EventBatch
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import complete
from taskgate.core.meta import META
from taskgate.core.wire import Kind, Members, Message, Raw
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.questions.inbox import Inbox
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.promotion import Promotions


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


Parts = TypeVar("Parts")
"""What the tools of one family need of the gateway."""
Answering = Awaitable[ToolReply | bytes]
"""Blocks, or a result that passes as it is."""


@dataclass(frozen=True, slots=True)
class OwnTool(Generic[Parts]):
    face: ToolFace
    use: Callable[[Parts, Request, dict[str, Any]], Answering]
    bare: bool = False
    """Its reply tells events in a form of its own, so none are put behind it."""
    has_local_state: bool = False
    """What it stores is in the memory of the gateway that was called, not in the store: later calls must reach the same gateway."""


@dataclass(frozen=True, slots=True)
class UsableTool:
    """A tool together with what it needs."""

    face: ToolFace
    use: Callable[[Request, dict[str, Any]], Answering]
    bare: bool


def usable(tools: Iterable[OwnTool[Parts]], parts: Parts) -> dict[str, UsableTool]:
    return {tool.face.name: UsableTool(tool.face, partial(tool.use, parts), tool.bare) for tool in tools}


@dataclass(frozen=True, slots=True)
class TaskParts:
    """The tasks of callers, and what callers are told and asked."""

    tasks: TaskEngine
    activity: Activity


def patience_s(promotions: Promotions, request: Request, asked_ms: int | None = None) -> float:
    """How long a helper may hold its reply: as asked, but never longer than this caller will wait for one."""
    settings = promotions.plan.value.calls.delivery
    delivery_mode = promotions.delivery_mode(request)
    limit = settings.promote_after_s if settings.promote_after_s > 0 else settings.hold_s
    if delivery_mode.beats and delivery_mode.wait_s is not None:
        limit = max(limit, delivery_mode.wait_s)
    return min(limit, asked_ms / 1000) if asked_ms is not None else limit


SERVER: Final = Parameter(
    "server", ArgumentKind.TEXT, "The name of the server, as list_servers shows it.", required=True
)


# A request that one of our own tools makes on behalf of its caller. It passes the same scope and gates as any other.
#
# What the server says meanwhile goes to the caller's feed (logs, notifications) besides going to the caller natively,
# and what would have been the reply of the inner call becomes part of the reply of the tool.
#
# What every reply of our own tools may end with: events since the last reply, and questions that wait for this caller.
#
# An event goes into one reply. It counts as told when that reply has been handed to the transport; if it could not be,
# the same event goes into the next one.

MAX_SHOWN: Final = 50


async def with_news(inbox: Inbox, request: Request, feed: Feed, reply: ToolReply) -> ToolReply:
    await feed.settled()
    batch, events = feed.take()
    blocks = []
    if events:
        blocks.append(json_block({"events_since_last_response": [event.shown() for event in events]}))
    hand_over(request, feed, batch)
    pending = pending_client_action(inbox, request)
    if pending:
        blocks.append(json_block({"pending_client_action": pending}))
    return reply.with_blocks(blocks) if blocks else reply


def hand_over(request: Request, feed: Feed, batch: EventBatch) -> None:
    """Whoever sends the reply says whether it arrived."""
    if batch:
        request.delivery.when_delivered(lambda arrived: feed.handed_over(batch, arrived))


def pending_client_action(inbox: Inbox, request: Request) -> dict[str, Any]:
    """Questions that wait for this caller, or nothing."""
    elicitations, sampling = inbox.elicitations(request), inbox.sampling_requests(request)
    if not elicitations and not sampling:
        return {}
    return {"elicitations": elicitations[:MAX_SHOWN], "sampling_requests": sampling[:MAX_SHOWN]}


_TRAVELS_ALONG = ("requestState", "inputResponses", META)


class InnerDelivery(ReplyDelivery, eq=False, kw_only=True):
    """What would be the reply of the inner call becomes part of the reply of the tool."""

    activity: Activity
    outer: Request
    feed: Feed
    server: str

    async def answer_early(self, result: bytes) -> None:
        """The call goes on as a task: the tool's reply, with its news, goes out now."""
        self.answered = True
        reply = await with_news(self.activity.inbox, self.outer, self.feed, relayed(result))
        await self.outer.delivery.answer_early(reply.encoded(self.outer.generation))

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        raw = bytes(params) if params is not None else None
        caller = self.outer.delivery
        if method == "notifications/progress":
            caller.notify(method, raw)
            return
        self.activity.heard(self.feed, self.server, method, raw)
        if method != "notifications/message" or caller.wants_log(log_level(raw)):
            caller.notify(method, raw)

    def wants_log(self, level: str) -> bool:
        return True


def inner_request(
    activity: Activity, outer: Request, feed: Feed, server: str, method: str, *, params: Members
) -> Request:
    """The request that a tool of ours makes for `outer`."""
    carried = outer.members()
    members = {**params, **{key: carried[key] for key in _TRAVELS_ALONG if key in carried}}
    decoded: dict[str, Any] = {key: wire.parse_strictly(bytes(value)) for key, value in members.items()}
    message = Message(Kind.REQUEST, outer.message.id, method, decoded, Raw(wire.join(members)))
    way = outer.delivery
    delivery = InnerDelivery(
        activity=activity,
        outer=outer,
        feed=feed,
        server=server,
        outlet=way.outlet,
        message_id=outer.message.id,
        session=outer.session,
        envelope=outer.envelope,
        inbox=way.inbox,
        carrier=way.carrier,
        span=way.span,
    )
    return replace(outer, message=message, params=decoded, delivery=delivery, inner=True, headers={})


def log_level(params: bytes | None) -> str:
    value = wire.parse_strictly(params) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"
