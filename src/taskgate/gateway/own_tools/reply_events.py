"""Append events and open questions to the reply of an own tool.

Each event is part of one reply. It counts as delivered when the transport has taken that reply; otherwise it is part of the
next.
"""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.event_log import EventBatch
from taskgate.gateway.own_tools.tool import ToolReply, json_block
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.questions.inbox import Inbox
from taskgate.gateway.requests.request import Request

MAX_SHOWN: Final = 50


async def with_events(inbox: Inbox, request: Request, feed: Feed, reply: ToolReply) -> ToolReply:
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
    """The sender of the reply reports whether it was delivered."""
    if batch:
        request.delivery.when_delivered(lambda arrived: feed.handed_over(batch, arrived))


def pending_client_action(inbox: Inbox, request: Request) -> dict[str, Any]:
    """Return the questions that wait for this caller, or an empty mapping."""
    elicitations, sampling = inbox.elicitations(request), inbox.sampling_requests(request)
    if not elicitations and not sampling:
        return {}
    return {"elicitations": elicitations[:MAX_SHOWN], "sampling_requests": sampling[:MAX_SHOWN]}
