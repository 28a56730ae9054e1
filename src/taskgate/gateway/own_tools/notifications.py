"""What every reply of our own tools may end with: events since the last reply, and questions that wait for this caller.

An event goes into one reply. It counts as told when that reply has been handed to the transport; if it could not be, the same
event goes into the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskgate.core.activity.events import Batch
from taskgate.gateway.own_tools.reply import ToolReply, json_block
from taskgate.gateway.questions.feed import Feed
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
        request.when_settled(lambda arrived: feed.handed_over(batch, arrived))


def pending_client_action(context: Context, request: Request) -> dict[str, Any]:
    """Questions that wait for this caller, or nothing."""
    inbox = context.activity.inbox
    elicitations, sampling = inbox.elicitations(request), inbox.sampling_requests(request)
    if not elicitations and not sampling:
        return {}
    return {"elicitations": elicitations[:MAX_SHOWN], "sampling_requests": sampling[:MAX_SHOWN]}
