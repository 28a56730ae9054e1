"""Own tools for servers' requests: list those that wait for the caller, and answer them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Family, Parameter, ToolFace
from taskgate.core.errors import CallerError
from taskgate.core.ids import is_task_id
from taskgate.core.questions.answers import ACTIONS
from taskgate.core.questions.question import FORMS, SAMPLE
from taskgate.gateway.own_tools.follow_tasks import NO_INBOX, without_conversation
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, text_reply
from taskgate.gateway.questions.inbox import Inbox
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.store.operations.task_queries import FindTask

_REQUEST_ID: Final = Parameter(
    "request_id", ArgumentKind.TEXT, "The id of the question, as a reply named it.", required=True
)
_ASKING_TASK_ID: Final = Parameter(
    "task_id", ArgumentKind.TEXT, "The task that the question is of, if a reply named it."
)
_SERVER: Final = Parameter("server", ArgumentKind.TEXT, "Only questions of this server.")
_REASON: Final = Parameter("reason", ArgumentKind.TEXT, "Why, for the log of the server.")


class QuestionParts(msgspec.Struct, frozen=True):
    inbox: Inbox
    records: TaskRecords


async def _find(parts: QuestionParts, request: Request, given: dict[str, Any], methods: tuple[str, ...]) -> Waiting:
    """Return the question, unless the person at a client answers it: a model must not answer in place of that person."""
    waiting = await _named(parts, request, given, methods)
    if not parts.inbox.is_for_person(waiting, request):
        return waiting
    if waiting.is_carried_to(request):
        raise CallerError(
            "not_allowed",
            f"This question is for the person at your client. get_task_result of {waiting.task_id} passes it on, and returns the "
            "result after the answer.",
        )
    raise CallerError(
        "not_allowed",
        "This question is for the person at the client that made the call. While that conversation is open, its person or the "
        f"operator of this gateway answers it. get_task_result of {waiting.task_id} waits for the result.",
    )


async def _named(parts: QuestionParts, request: Request, given: dict[str, Any], methods: tuple[str, ...]) -> Waiting:
    """Return the caller's question: from its own inbox, or of a task that it may see."""
    task_id = given.get("task_id")
    task = await parts.records.store.ask(FindTask(task_id)) if task_id is not None and is_task_id(task_id) else None
    if task is not None and parts.records.may_see(request, task):
        for waiting in parts.inbox.of_task(task.id, methods):
            if waiting.id == given["request_id"]:
                return waiting
    return parts.inbox.find(request.caller_key, given["request_id"], methods)


async def get_elicitations(parts: QuestionParts, request: Request, given: dict[str, Any]) -> ToolReply:
    return _questions(request, "elicitations", parts.inbox.elicitations(request, given.get("server")))


async def get_sampling_requests(parts: QuestionParts, request: Request, given: dict[str, Any]) -> ToolReply:
    return _questions(request, "sampling_requests", parts.inbox.sampling_requests(request, given.get("server")))


def _questions(request: Request, name: str, found: list[dict[str, Any]]) -> ToolReply:
    note = {"note": NO_INBOX} if not found and without_conversation(request) else {}
    return text_reply({name: found, **note})


async def respond_to_elicitation(parts: QuestionParts, request: Request, given: dict[str, Any]) -> ToolReply:
    inbox = parts.inbox
    waiting = await _find(parts, request, given, FORMS)
    inbox.answer_elicitation(waiting, given["action"], given.get("content"))
    await waiting.kept()
    return text_reply({"success": True, "message": f"{waiting.server} has your answer ({given['action']})."})


async def respond_to_sampling(parts: QuestionParts, request: Request, given: dict[str, Any]) -> ToolReply:
    inbox = parts.inbox
    waiting = await _find(parts, request, given, (SAMPLE,))
    inbox.answer_sampling(waiting, given["role"], given["content"], given["model"], given.get("stop_reason"))
    await waiting.kept()
    return text_reply({"success": True, "message": f"{waiting.server} has your message."})


async def cancel_elicitation_request(parts: QuestionParts, request: Request, given: dict[str, Any]) -> ToolReply:
    return await _cancelled(parts, request, given, FORMS)


async def cancel_sampling_request(parts: QuestionParts, request: Request, given: dict[str, Any]) -> ToolReply:
    return await _cancelled(parts, request, given, (SAMPLE,))


async def _cancelled(
    parts: QuestionParts, request: Request, given: dict[str, Any], methods: tuple[str, ...]
) -> ToolReply:
    waiting = await _find(parts, request, given, methods)
    parts.inbox.refuse(waiting, given.get("reason"))
    await waiting.kept()
    return text_reply({"success": True, "message": f"{waiting.server} was notified that the question is declined."})


QUESTION_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.GET_ELICITATIONS,
            "Show the questions that servers ask you: forms to fill in and pages to open. Answer them with "
            "respond_to_elicitation; the server waits meanwhile.",
            (_SERVER,),
            Family.HELPER,
        ),
        get_elicitations,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.RESPOND_TO_ELICITATION,
            "Answer a question of a server. To accept a form, give the fields it asked for as content; ask the person "
            "you work for if you do not know them.",
            (
                _REQUEST_ID,
                _ASKING_TASK_ID,
                Parameter("action", ArgumentKind.TEXT, "accept, decline or cancel.", required=True, choices=ACTIONS),
                Parameter("content", ArgumentKind.OBJECT, "The filled-in form, for accept."),
            ),
            Family.HELPER,
            reads_only=False,
        ),
        respond_to_elicitation,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.GET_SAMPLING_REQUESTS,
            "Show the messages that servers ask you to write (sampling). Answer them with respond_to_sampling.",
            (_SERVER,),
            Family.HELPER,
        ),
        get_sampling_requests,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.RESPOND_TO_SAMPLING,
            "Answer a server that asked for a message from a language model.",
            (
                _REQUEST_ID,
                _ASKING_TASK_ID,
                Parameter("role", ArgumentKind.TEXT, "The author.", default="assistant", choices=("assistant", "user")),
                Parameter("content", ArgumentKind.MESSAGE, "The message, as text.", required=True),
                Parameter("model", ArgumentKind.TEXT, "The model that wrote it.", required=True),
                Parameter("stop_reason", ArgumentKind.TEXT, "Why it ended, for example endTurn."),
            ),
            Family.HELPER,
            reads_only=False,
        ),
        respond_to_sampling,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.CANCEL_ELICITATION_REQUEST,
            "Decline a question of a server.",
            (_REQUEST_ID, _ASKING_TASK_ID, _REASON),
            reads_only=False,
        ),
        cancel_elicitation_request,
    ),
    OwnTool(
        ToolFace(
            OwnToolName.CANCEL_SAMPLING_REQUEST,
            "Decline a server's request for a message.",
            (_REQUEST_ID, _ASKING_TASK_ID, _REASON),
            reads_only=False,
        ),
        cancel_sampling_request,
    ),
)
