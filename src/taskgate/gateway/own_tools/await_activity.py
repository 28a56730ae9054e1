"""Own tool that waits for any event, instead of polling many tools.

It replies at once if there are events, otherwise when there are or after a timeout. All waiting calls wake together; the first
reply has the events, and every reply the current state.

A caller that presents the ids of tasks follows those tasks too, in whichever conversation they were begun, if it may see them.
A caller with neither an identity nor a name has no other way: each of its requests is a conversation of its own. The events of
such a task are in the stream of the request that began it. Presenting the id opens that stream, and each event is delivered
once. The events of other conversations stay with those; of their tasks the reply has the state only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core.activity import IMMEDIATE, TIMEOUT, pending_on_servers, triggers
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Family, Parameter, ToolFace, wait_parameter
from taskgate.core.errors import CallerError
from taskgate.core.events import ENDED, Event, by_server
from taskgate.core.identity.addressees import has_conversation
from taskgate.core.ids import is_ulid
from taskgate.core.questions.question import FORMS, SAMPLE
from taskgate.core.tasks.projections_tools import shown_status, shown_task
from taskgate.core.tasks.task import Task
from taskgate.gateway.own_tools.follow_tasks import find, without_conversation
from taskgate.gateway.own_tools.reply_events import MAX_SHOWN, hand_over
from taskgate.gateway.own_tools.tool import OwnTool, TaskParts, ToolReply, max_wait_s, text_reply
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.requests.heartbeat import Heartbeat
from taskgate.gateway.requests.request import Request

DEFAULT_MS: Final = 30_000
MAX_TASKS: Final = 50
LAST_EVENTS_MS: Final = 1_000
"""How long to wait for the final events of ended tasks."""


class Followed(msgspec.Struct, frozen=True):
    """What one call waits for: feeds, and tasks of other conversations."""

    feeds: tuple[Feed, ...]
    tasks: tuple[Task, ...]
    elsewhere: tuple[Task, ...]

    @property
    def has_events(self) -> bool:
        return any(feed.log.has_new for feed in self.feeds)

    @property
    def has_ended(self) -> bool:
        """Return whether all tasks in `task_ids` have ended. Then only their final events are still awaited."""
        return bool(self.tasks) and all(task.state.is_terminal for task in self.tasks)

    @property
    def has_seen_end(self) -> bool:
        """Return whether the final events of the tasks have arrived: the store shows the end of a task before its event."""
        events = [event for feed in self.feeds for event in feed.log.since(0) if event.kind in ENDED]
        reported = {event.data.get("task_id") for event in events}
        return all(task.id in reported for task in self.tasks if task not in self.elsewhere)


async def await_activity(parts: TaskParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    await parts.tasks.asking.accept(request, OwnToolName.AWAIT_ACTIVITY.value)
    after = given.get("after")
    if after is not None and not is_ulid(after):
        raise CallerError("invalid_params", '"after" must be the id of an event, as lastEventId of an earlier reply.')
    followed = await _followed(parts, request, given.get("task_ids") or [])
    own, gets_no_events = followed.feeds[0], without_conversation(request) and not followed.tasks
    why, question = [IMMEDIATE], await _question(parts, request, followed)
    if question is None and not followed.has_events and not (after is not None and own.log.has_after(after)):
        # A request without a conversation never receives events, so it does not wait.
        why = [TIMEOUT] if gets_no_events else await _wait_for_more(parts, request, followed, given["timeout_ms"])
        question = await _question(parts, request, followed)
    if question is not None:
        # The events stay for the request with which the caller returns.
        return question
    events, last = _taken(request, followed, after)
    now = parts.tasks.store.now_ms()
    reply: dict[str, Any] = {
        "triggers": why,
        "events": by_server(tuple(events)),
        "pending_server": pending_on_servers(
            (task for feed in followed.feeds for task in feed.open_tasks.values()), now
        ),
        "pending_client": _pending_client(parts, request, followed.tasks),
    }
    if followed.tasks:
        reply["tasks"] = [shown_task(await find(parts, request, task.id), now) for task in followed.tasks]
    if last is not None:
        reply["lastEventId"] = last
    if gets_no_events:
        reply["note"] = NO_EVENTS
    return text_reply(reply)


async def _question(parts: TaskParts, request: Request, followed: Followed) -> bytes | None:
    """The questions of the tasks that this call waits for, as its result."""
    tasks = {task.id: task for feed in followed.feeds for task in feed.open_tasks.values()}
    for task in followed.tasks:
        tasks[task.id] = await find(parts, request, task.id)
    return await parts.tasks.asking.reply(request, tasks.values(), OwnToolName.AWAIT_ACTIVITY.value)


def _taken(request: Request, followed: Followed, after: str | None) -> tuple[list[Event], str | None]:
    """Return the new events of all feeds in order, and the id of the last event of the caller's own feed."""
    own = followed.feeds[0]
    batch, found = own.take(after)
    hand_over(request, own, batch)
    events, last = list(found), found[-1].id if found else own.log.last_id
    for feed in followed.feeds[1:]:
        batch, found = feed.take(None)
        hand_over(request, feed, batch)
        events += found
    # Each feed is in order already, and the sort is stable. Ids of one millisecond are random.
    events.sort(key=lambda event: event.at_ms)
    return events, last


NO_EVENTS: Final = (
    "Calls without an identity and without a client name receive no events. Pass the ids of your tasks as task_ids, "
    'or name the client in _meta["taskgate/client"] of every request.'
)


async def _followed(parts: TaskParts, request: Request, task_ids: Sequence[str]) -> Followed:
    distinct = list(dict.fromkeys(task_ids))
    if len(distinct) > MAX_TASKS:
        raise CallerError("invalid_params", f'"task_ids" may name at most {MAX_TASKS} tasks.')
    tasks = [await find(parts, request, task_id) for task_id in distinct]
    feeds = {request.conversation_key: await parts.activity.feed(request)}
    for task in tasks:
        parts.tasks.methods.polled(task)
        if not has_conversation(task.conversation_key.stream) and task.conversation_key not in feeds:
            feeds[task.conversation_key] = await parts.activity.feed_of(task.conversation_key, request.caller.scope)
    for feed in feeds.values():
        await feed.settled()
    elsewhere = tuple(task for task in tasks if task.conversation_key not in feeds)
    return Followed(tuple(feeds.values()), tuple(tasks), elsewhere)


async def _wait_for_more(
    parts: TaskParts, request: Request, followed: Followed, timeout_ms: int
) -> list[dict[str, Any]]:
    """Wait for the next event, or only for the final events of tasks that have ended."""
    if not followed.has_ended:
        return await _wait(parts, request, followed, timeout_ms)
    if not followed.has_seen_end:
        await _wait(parts, request, followed, min(timeout_ms, LAST_EVENTS_MS))
    return [IMMEDIATE]


async def _wait(parts: TaskParts, request: Request, followed: Followed, timeout_ms: int) -> list[dict[str, Any]]:
    """Wait until a feed has a new event, or a task of another conversation changes."""
    beat = Heartbeat(request, parts.tasks.plan.value.tasks.heartbeat_ms / 1000, "Waiting for activity")
    positions = [(feed, feed.log.count) for feed in followed.feeds]
    max_wait = max_wait_s(parts.tasks.promotions, request, timeout_ms)
    loop = asyncio.get_running_loop()
    waiting = [loop.create_task(feed.wait_for_event(position, max_wait)) for feed, position in positions]
    waiting += [
        loop.create_task(_changed(parts, request, task, max_wait))
        for task in followed.elsewhere
        if not task.state.is_terminal
    ]
    beat.start()
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        beat.stop()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if not any(each.result() for each in done):
        return [TIMEOUT]
    return [why for feed, position in positions for why in triggers(feed.log.since(position))] or [IMMEDIATE]


async def _changed(parts: TaskParts, request: Request, task: Task, max_wait: float) -> bool:
    """Wait until the status of a task changes. Return False on timeout."""
    until, found = clock.monotonic() + max_wait, task
    while (left := until - clock.monotonic()) > 0:
        if not await parts.tasks.records.changes.next_change(found, left):
            return False
        now, found = parts.tasks.store.now_ms(), await find(parts, request, task.id)
        if shown_status(found, now) != shown_status(task, now):
            return True
    return False


def _pending_client(parts: TaskParts, request: Request, tasks: Sequence[Task]) -> dict[str, Any]:
    inbox, conversation = parts.activity.inbox, request.conversation_key

    def asked(methods: tuple[str, ...]) -> list[Waiting]:
        of_tasks = [waiting for task in tasks for waiting in inbox.of_task(task.id, methods)]
        found = {waiting.id: waiting for waiting in (*inbox.of(conversation, methods), *of_tasks)}.values()
        return [waiting for waiting in found if not inbox.is_for_person(waiting, request)][:MAX_SHOWN]

    return {
        "elicitations": [_shown(waiting) | {"message": waiting.message} for waiting in asked(FORMS)],
        "sampling_requests": [_shown(waiting) for waiting in asked((SAMPLE,))],
    }


def _shown(waiting: Waiting) -> dict[str, Any]:
    return {
        "requestId": waiting.id,
        "server": waiting.server,
        **({"taskId": waiting.task_id} if waiting.task_id else {}),
    }


WAITING_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.AWAIT_ACTIVITY,
            "Wait until something happens: a task ends, a server asks a question or sends a notification, a timer "
            "fires. Returns what happened since your last call, what servers still work on, and what waits for you.",
            (
                wait_parameter(DEFAULT_MS, "How long to wait at most, in milliseconds."),
                Parameter(
                    "after",
                    ArgumentKind.TEXT,
                    "Return everything after this event id again, also what was returned before.",
                ),
                Parameter(
                    "task_ids",
                    ArgumentKind.TEXTS,
                    f"Also follow these tasks, by the ids that replies named (at most {MAX_TASKS}). Returns their state.",
                ),
            ),
            Family.HELPER,
        ),
        await_activity,
        bare=True,
        has_local_state=True,
    ),
)
