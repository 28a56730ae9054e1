"""Waiting for anything to happen: one tool instead of polling many.

It answers at once if there is news already, wakes when there is, and otherwise when its time is up. All who wait wake together;
the first reply carries the events, and every reply the state of things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskgate.core.catalog.own_tools import Family, Kind, Parameter, ToolFace, wait_parameter
from taskgate.core.errors import CallerError
from taskgate.core.events import IMMEDIATE, TIMEOUT, by_server, pending_on_servers, triggers
from taskgate.core.questions import SAMPLE
from taskgate.core.tasks.task import is_ulid
from taskgate.gateway.own_tools.inner import MAX_SHOWN, hand_over
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, patience_s, saying
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.questions.inbox import FORMS
from taskgate.gateway.requests.request import Heartbeat, Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

DEFAULT_MS: Final = 30_000


async def await_activity(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    after = given.get("after")
    if after is not None and not is_ulid(after):
        raise CallerError("invalid_params", '"after" must be the id of an event, as lastEventId of an earlier reply.')
    feed = await context.activity.feed(request)
    await feed.settled()
    why = [IMMEDIATE]
    if not feed.log.has_new and not (after is not None and feed.log.has_after(after)):
        why = await _wait(context, request, feed, given["timeout_ms"])
    batch, events = feed.take(after)
    hand_over(request, feed, batch)
    reply: dict[str, Any] = {
        "triggers": why,
        "events": by_server(tuple(events)),
        "pending_server": pending_on_servers(feed.open_tasks.values(), context.tasks.store.now_ms()),
        "pending_client": _pending_client(context, request),
    }
    last = events[-1].id if events else feed.log.last_id
    if last is not None:
        reply["lastEventId"] = last
    return saying(reply)


async def _wait(context: Context, request: Request, feed: Feed, timeout_ms: int) -> list[dict[str, Any]]:
    beat = Heartbeat(request, context.plan.calls.delivery.heartbeat_s, "Waiting for activity")
    beat.start()
    position = feed.log.count
    try:
        woken = await feed.news(patience_s(context, request, timeout_ms))
    finally:
        beat.stop()
    return (triggers(feed.log.since(position)) or [IMMEDIATE]) if woken else [TIMEOUT]


def _pending_client(context: Context, request: Request) -> dict[str, Any]:
    inbox, who = context.activity.inbox, request.conversation_key
    return {
        "elicitations": [
            {"requestId": waiting.id, "server": waiting.server, "message": waiting.message}
            for waiting in inbox.of(who, FORMS)[:MAX_SHOWN]
        ],
        "sampling_requests": [
            {"requestId": waiting.id, "server": waiting.server} for waiting in inbox.of(who, (SAMPLE,))[:MAX_SHOWN]
        ],
    }


TOOLS: Final = (
    OwnTool(
        ToolFace(
            "await_activity",
            "Wait until something happens: a task ends, a server asks a question or sends a notification, a timer "
            "fires. Returns what happened since your last call, what servers still work on, and what waits for you.",
            (
                wait_parameter(DEFAULT_MS, "How long to wait at most, in milliseconds."),
                Parameter(
                    "after", Kind.TEXT, "Return everything after this event id again, also what was told before."
                ),
            ),
            Family.HELPER,
        ),
        await_activity,
        bare=True,
    ),
)
