"""Own tools for timers: set, list and delete. A timer that fires becomes an event for its caller."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import LONGEST_WAIT_MS, ArgumentKind, Parameter, ToolFace
from taskgate.core.errors import CallerError
from taskgate.core.events import EventKind
from taskgate.core.timestamps import iso
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, text_reply
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.feed import Feed, new_ulid
from taskgate.gateway.requests.request import Request

MIN_INTERVAL_MS: Final = 1000


class Timer(msgspec.Struct):
    id: str
    message: str
    duration_ms: int
    repeats: bool
    fires_ms: int
    handle: asyncio.TimerHandle

    def shown(self) -> dict[str, Any]:
        return {
            "timer_id": self.id,
            "message": self.message,
            "duration_ms": self.duration_ms,
            "interval": self.repeats,
            "fires_at": iso(self.fires_ms),
        }


class TimerParts(msgspec.Struct, frozen=True):
    lookup: Lookup
    activity: Activity


async def set_timer(parts: TimerParts, request: Request, given: dict[str, Any]) -> ToolReply:
    feed = await parts.activity.feed(request)
    maximum = parts.lookup.plan.value.limits.timers_per_session
    if len(feed.timers) >= maximum:
        raise CallerError("invalid_params", f"You have {maximum} timers already; delete some with delete_timer.")
    if given["interval"] and given["duration_ms"] < MIN_INTERVAL_MS:
        raise CallerError("invalid_params", f"A timer that repeats needs at least {MIN_INTERVAL_MS} ms.")
    now = clock.wall_ms()
    timer_id = new_ulid(now)
    handle = asyncio.get_running_loop().call_later(given["duration_ms"] / 1000, _fire, feed, timer_id)
    timer = Timer(
        id=timer_id,
        message=given["message"],
        duration_ms=given["duration_ms"],
        repeats=given["interval"],
        fires_ms=now + given["duration_ms"],
        handle=handle,
    )
    feed.timers[timer_id] = timer
    return text_reply({"timer": timer.shown()})


def _fire(feed: Feed, timer_id: str) -> None:
    timer: Timer | None = feed.timers.get(timer_id)
    if timer is None:
        return
    if timer.repeats:
        timer.fires_ms += timer.duration_ms
        timer.handle = asyncio.get_running_loop().call_later(timer.duration_ms / 1000, _fire, feed, timer_id)
    else:
        del feed.timers[timer_id]
    feed.add_event(EventKind.TIMER_EXPIRED, "", {"timer_id": timer.id, "message": timer.message})


async def list_timers(parts: TimerParts, request: Request, _given: dict[str, Any]) -> ToolReply:
    feed = await parts.activity.feed(request)
    return text_reply({"timers": [timer.shown() for timer in feed.timers.values()]})


async def delete_timer(parts: TimerParts, request: Request, given: dict[str, Any]) -> ToolReply:
    feed = await parts.activity.feed(request)
    timer = feed.timers.pop(given["timer_id"], None)
    if timer is None:
        raise CallerError("invalid_params", "There is no such timer. list_timers shows those that run.")
    timer.handle.cancel()
    return text_reply({"success": True, "message": "The timer will not fire.", "timer": timer.shown()})


TIMER_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.SET_TIMER,
            "Set a timer; when it fires, you get an event. Use it to return to something later.",
            (
                Parameter(
                    "duration_ms",
                    ArgumentKind.WHOLE,
                    "In how many milliseconds.",
                    required=True,
                    minimum=1,
                    maximum=LONGEST_WAIT_MS,
                ),
                Parameter("message", ArgumentKind.TEXT, "What to remind you of.", required=True),
                Parameter("interval", ArgumentKind.YES_NO, "Fire again and again.", default=False),
            ),
            reads_only=False,
        ),
        set_timer,
        has_local_state=True,
    ),
    OwnTool(ToolFace(OwnToolName.LIST_TIMERS, "List your timers."), list_timers, has_local_state=True),
    OwnTool(
        ToolFace(
            OwnToolName.DELETE_TIMER,
            "Stop a timer.",
            (Parameter("timer_id", ArgumentKind.TEXT, "The id of the timer.", required=True),),
            reads_only=False,
        ),
        delete_timer,
        has_local_state=True,
    ),
)
