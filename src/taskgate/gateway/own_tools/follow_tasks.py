"""Own tools for tasks, for callers without task support: list, get, wait for the result, cancel."""

from __future__ import annotations

from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Family, Parameter, ToolFace, wait_parameter
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import RELATED_TASK
from taskgate.core.identity.addressees import NO_CONVERSATION
from taskgate.core.ids import is_task_id
from taskgate.core.meta import with_meta
from taskgate.core.questions.question import SAMPLE
from taskgate.core.tasks.deadlines import is_expired
from taskgate.core.tasks.projections_tools import (
    MAX_SHOWN_ARGUMENTS,
    STATUSES,
    shown_status,
    shown_task,
    states_shown_as,
)
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.core.tasks.task import Task
from taskgate.gateway.own_tools.tool import OwnTool, TaskParts, ToolReply, max_wait_s, relayed, text_reply
from taskgate.gateway.requests.heartbeat import Heartbeat
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.own_tasks import own_tasks
from taskgate.ports.upstream_replies import RelayedError
from taskgate.store.operations.task_queries import FindTask

MAX_LISTED: Final = 1000
NO_LIST: Final = (
    'Calls without an identity have no list of tasks unless they name their client in _meta["taskgate/client"]. '
    "get_task finds a task by its id."
)
NO_INBOX: Final = (
    'Calls without an identity have no inbox unless they name their client in _meta["taskgate/client"]. '
    "get_task shows what a task asks, by the task's id, and await_activity follows tasks by their ids (task_ids)."
)
_TASK_ID: Final = Parameter("task_id", ArgumentKind.TEXT, "The id of the task, as a reply named it.", required=True)


async def list_tasks(parts: TaskParts, request: Request, given: dict[str, Any]) -> ToolReply:
    word = given.get("status")
    states = states_shown_as(word) if word is not None else (None if given["include_completed"] else OPEN)
    tasks = await tasks_of(parts, request, states, given.get("server"), include_expired=word == "expired")
    now = parts.tasks.store.now_ms()
    shown = [shown_task(task, now) for task in tasks]
    reply: dict[str, Any] = {"tasks": [row for row in shown if word is None or row["status"] == word]}
    if without_conversation(request):
        reply["note"] = NO_LIST
    return text_reply(reply)


def without_conversation(request: Request) -> bool:
    """Return whether the caller has neither identity nor client name: its lists, events and inbox are empty."""
    return request.caller_key.startswith(NO_CONVERSATION)


async def tasks_of(
    parts: TaskParts,
    request: Request,
    states: frozenset[TaskState] | None,
    server: str | None,
    *,
    include_expired: bool = False,
) -> list[Task]:
    """Return the caller's tasks, newest first, up to a limit."""
    found: list[Task] = []
    after: str | None = None
    while len(found) < MAX_LISTED:
        page = await own_tasks(
            parts.tasks.store,
            parts.activity.conversations,
            request.conversation_key,
            after=after,
            limit=200,
            server=server,
            states=states,
            include_expired=include_expired,
            arguments_up_to=MAX_SHOWN_ARGUMENTS,
        )
        found.extend(page.tasks)
        after = page.after
        if after is None:
            break
    return found[:MAX_LISTED]


async def find(parts: TaskParts, request: Request, task_id: str) -> Task:
    """Return the task, also if its result was deleted: the tools show it as expired."""
    task = await parts.tasks.store.ask(FindTask(task_id, include_expired=True)) if is_task_id(task_id) else None
    if task is None or not parts.tasks.records.may_see(request, task):
        raise CallerError(
            "unknown_task", f"There is no task {task_id[:60]!r}, or it is no longer kept. list_tasks shows your tasks."
        )
    return task


async def get_task(parts: TaskParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    await parts.tasks.asking.accept(request, OwnToolName.GET_TASK.value)
    task = await find(parts, request, given["task_id"])
    parts.tasks.methods.polled(task)
    question = await parts.tasks.asking.reply(request, (task,), OwnToolName.GET_TASK.value)
    if question is not None:
        return question
    shown = shown_task(task, parts.tasks.store.now_ms())
    inbox = parts.activity.inbox
    asked = inbox.elicitations(request, task.server, task.id)
    reply = {"task": shown, "pending_elicitations_for_server": asked}
    if sampling := [one for one in inbox.of_task(task.id, (SAMPLE,)) if not inbox.is_for_person(one, request)]:
        reply["pending_sampling_requests"] = [one.shown() for one in sampling]
    return text_reply(reply)


async def get_task_result(parts: TaskParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    """Return the tool's result when it is available. At the timeout the caller is asked to call again.

    A question that the caller can answer is returned at once.
    """
    name = OwnToolName.GET_TASK_RESULT.value
    await parts.tasks.asking.accept(request, name)
    task = await find(parts, request, given["task_id"])
    limit = max_wait_s(parts.tasks.promotions, request, given.get("timeout_ms"))
    methods = parts.tasks.methods
    beat = Heartbeat(request, parts.tasks.plan.value.tasks.heartbeat_ms / 1000, f"Waiting for {task.wire_name}")
    began = clock.monotonic()
    beat.start()
    parts.tasks.followers.add_result_request(task.id, request)
    question: bytes | None = None

    async def is_asked(now: Task) -> bool:
        nonlocal question
        question = await parts.tasks.asking.reply(request, (now,), name)
        return question is not None

    try:
        task = await methods.wait(request, task, limit, until=is_asked)
    finally:
        parts.tasks.followers.remove_request(task.id, request)
        beat.stop()
    if question is not None:
        return question
    now = parts.tasks.store.now_ms()
    shown = shown_task(task, now)
    if not task.state.is_terminal:
        inbox = parts.activity.inbox
        by_tools = [one for one in inbox.of_task(task.id) if not inbox.is_for_person(one, request)]
        return text_reply(_not_yet(task, clock.monotonic() - began, by_tools=bool(by_tools)), {"task": shown})
    if is_expired(task, now):
        return text_reply({"error": "The result of this task is no longer kept.", "task": shown}, is_error=True)
    try:
        final = await methods.final_result(request, task)
    except RelayedError as problem:
        return text_reply({"error": str(wire.parse_strictly(problem.raw).get("message")), "task": shown}, is_error=True)
    if task.outcome is None:
        return text_reply({"error": task.status_message or "The task was cancelled.", "task": shown}, is_error=True)
    return relayed(wire.join(with_meta(wire.members_of(final), {}, drop=(RELATED_TASK,))))


def _not_yet(task: Task, waited_s: float, *, by_tools: bool) -> str:
    """`by_tools`: whether the tools that answer questions can answer what the task asks."""
    after = f"after {round(waited_s, 1):g} s of waiting"
    if task.state is TaskState.AWAITING_APPROVAL:
        return f"Task {task.id} still waits for a person's approval {after}; the tool has not run. Call get_task_result again."
    if task.state is TaskState.INPUT_REQUIRED and not by_tools:
        return f"Task {task.id} waits for an answer of the person at the client {after}. Call get_task_result again."
    if task.state is TaskState.INPUT_REQUIRED:
        asked = f" ({task.status_message})" if task.status_message else ""
        return (
            f"Task {task.id} waits for an answer{asked}: get_task shows the question, and respond_to_elicitation or "
            "respond_to_sampling answers it. Then call get_task_result again."
        )
    return f"Task {task.id} is still working {after}. Call get_task_result again."


async def cancel_task(parts: TaskParts, request: Request, given: dict[str, Any]) -> ToolReply:
    task = await find(parts, request, given["task_id"])
    if task.state.is_terminal:
        status = shown_status(task, parts.tasks.store.now_ms())
        return text_reply({"success": False, "message": f"This task has ended already, as {status}."}, is_error=True)
    task = await parts.tasks.methods.cancel_task(task, None)
    return text_reply({"success": True, "message": task.status_message or f"Task {task.id} is cancelled."})


TASK_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.LIST_TASKS,
            "List your tasks: calls that took long and continue in the background. Without parameters only those that "
            "are still working.",
            (
                Parameter("server", ArgumentKind.TEXT, "Only tasks on this server."),
                Parameter("status", ArgumentKind.TEXT, "Only tasks with this status.", choices=STATUSES),
                Parameter("include_completed", ArgumentKind.YES_NO, "Also tasks that have ended.", default=False),
            ),
            Family.HELPER,
        ),
        list_tasks,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.GET_TASK,
            "Show one task: its status, and what its server waits for.",
            (_TASK_ID,),
            Family.HELPER,
        ),
        get_task,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.GET_TASK_RESULT,
            "Wait for the result of a task and return it. If it has not ended in time, the reply has its state; then call again.",
            (_TASK_ID, wait_parameter(None, "How long to wait at most, in milliseconds.")),
            Family.HELPER,
        ),
        get_task_result,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.CANCEL_TASK,
            "Cancel a task that is still working.",
            (_TASK_ID,),
            Family.HELPER,
            reads_only=False,
        ),
        cancel_task,
    ),
)
