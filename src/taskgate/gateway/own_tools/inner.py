"""A request that one of our own tools makes on behalf of its caller. It passes the same scope and gates as any other.

What the server says meanwhile goes to the caller's feed (logs, notifications) besides going to the caller natively, and what
would have been the reply of the inner call becomes part of the reply of the tool.

What every reply of our own tools may end with: events since the last reply, and questions that wait for this caller.

An event goes into one reply. It counts as told when that reply has been handed to the transport; if it could not be, the same
event goes into the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.events import Batch
from taskgate.core.wire import META, Kind, Members, Message, Raw
from taskgate.gateway.own_tools.tool import ToolReply, json_block, relayed
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

MAX_SHOWN: Final = 50


async def with_news(context: Context, request: Request, feed: Feed, reply: ToolReply) -> ToolReply:
    await feed.settled()
    batch, events = feed.take()
    blocks = []
    if events:
        blocks.append(json_block({"events_since_last_response": [event.shown() for event in events]}))
    hand_over(request, feed, batch)
    pending = pending_client_action(context, request)
    if pending:
        blocks.append(json_block({"pending_client_action": pending}))
    return reply.with_blocks(blocks) if blocks else reply


def hand_over(request: Request, feed: Feed, batch: Batch) -> None:
    """Whoever sends the reply says whether it arrived."""
    if batch:
        request.delivery.when_settled(lambda arrived: feed.handed_over(batch, arrived))


def pending_client_action(context: Context, request: Request) -> dict[str, Any]:
    """Questions that wait for this caller, or nothing."""
    inbox = context.activity.inbox
    elicitations, sampling = inbox.elicitations(request), inbox.sampling_requests(request)
    if not elicitations and not sampling:
        return {}
    return {"elicitations": elicitations[:MAX_SHOWN], "sampling_requests": sampling[:MAX_SHOWN]}


_TRAVELS_ALONG = ("requestState", "inputResponses", META)


class InnerDelivery(ReplyDelivery, eq=False, kw_only=True):
    """What would be the reply of the inner call becomes part of the reply of the tool."""

    context: Context
    outer: Request
    feed: Feed
    server: str

    async def answer_early(self, result: bytes) -> None:
        """The call goes on as a task: the tool's reply, with its news, goes out now."""
        self.answered = True
        reply = await with_news(self.context, self.outer, self.feed, relayed(result))
        await self.outer.delivery.answer_early(reply.encoded(self.outer.generation))

    def notify(self, method: str, params: bytes | Raw | None) -> None:
        raw = bytes(params) if params is not None else None
        caller = self.outer.delivery
        if method == "notifications/progress":
            caller.notify(method, raw)
            return
        self.context.activity.heard(self.feed, self.server, method, raw)
        if method != "notifications/message" or caller.wants_log(log_level(raw)):
            caller.notify(method, raw)

    def wants_log(self, level: str) -> bool:
        return True


def inner_request(
    context: Context, outer: Request, feed: Feed, server: str, method: str, *, params: Members
) -> Request:
    """The request that a tool of ours makes for `outer`."""
    carried = outer.members()
    members = {**params, **{key: carried[key] for key in _TRAVELS_ALONG if key in carried}}
    decoded: dict[str, Any] = {key: wire.parse_strictly(bytes(value)) for key, value in members.items()}
    message = Message(Kind.REQUEST, outer.message.id, method, decoded, Raw(wire.join(members)))
    way = outer.delivery
    delivery = InnerDelivery(
        context=context,
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
