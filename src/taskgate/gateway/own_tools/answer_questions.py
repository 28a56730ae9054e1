"""Questions of servers as tools: see what waits for you, and answer it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskgate.core.answers import ACTIONS
from taskgate.core.catalog.own_tools import Family, Kind, Parameter, ToolFace
from taskgate.core.questions import SAMPLE
from taskgate.core.tasks.task import is_task_id
from taskgate.gateway.own_tools.tool import OwnTool, ToolReply, saying
from taskgate.gateway.questions.inbox import FORMS
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.requests.caller_keys import may_see
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

_REQUEST_ID: Final = Parameter("request_id", Kind.TEXT, "The id of the question, as a reply named it.", required=True)
_TASK_ID: Final = Parameter("task_id", Kind.TEXT, "The task that the question is of, if a reply named it.")
_SERVER: Final = Parameter("server", Kind.TEXT, "Only questions of this server.")
_REASON: Final = Parameter("reason", Kind.TEXT, "Why, for the log of the server.")


async def _find(context: Context, request: Request, given: dict[str, Any], methods: tuple[str, ...]) -> Waiting:
    """The question, if it is this caller's: from its own inbox, or of a task whose id it knows and that it may see."""
    task_id = given.get("task_id")
    task = await context.tasks.store.get(task_id) if task_id is not None and is_task_id(task_id) else None
    if task is not None and may_see(request, task):
        for waiting in context.activity.inbox.of_task(task.id, methods):
            if waiting.id == given["request_id"]:
                return waiting
    return context.activity.inbox.find(request.caller_key, given["request_id"], methods)


async def get_elicitations(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    return saying({"elicitations": context.activity.inbox.elicitations(request, given.get("server"))})


async def get_sampling_requests(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    return saying({"sampling_requests": context.activity.inbox.sampling_requests(request, given.get("server"))})


async def respond_to_elicitation(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    inbox = context.activity.inbox
    waiting = await _find(context, request, given, FORMS)
    inbox.answer_elicitation(waiting, given["action"], given.get("content"))
    await waiting.kept()
    return saying({"success": True, "message": f"{waiting.server} has your answer ({given['action']})."})


async def respond_to_sampling(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    inbox = context.activity.inbox
    waiting = await _find(context, request, given, (SAMPLE,))
    inbox.answer_sampling(waiting, given["role"], given["content"], given["model"], given.get("stop_reason"))
    await waiting.kept()
    return saying({"success": True, "message": f"{waiting.server} has your message."})


async def cancel_elicitation_request(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    return await _cancelled(context, request, given, FORMS)


async def cancel_sampling_request(context: Context, request: Request, given: dict[str, Any]) -> ToolReply:
    return await _cancelled(context, request, given, (SAMPLE,))


async def _cancelled(context: Context, request: Request, given: dict[str, Any], methods: tuple[str, ...]) -> ToolReply:
    waiting = await _find(context, request, given, methods)
    context.activity.inbox.refuse(waiting, given.get("reason"))
    await waiting.kept()
    return saying({"success": True, "message": f"{waiting.server} was told that nobody will answer."})


TOOLS: Final = (
    OwnTool(
        ToolFace(
            "get_elicitations",
            "Show the questions that servers ask you: forms to fill in and pages to open. Answer them with "
            "respond_to_elicitation; the server waits meanwhile.",
            (_SERVER,),
            Family.HELPER,
        ),
        get_elicitations,
    ),
    OwnTool(
        ToolFace(
            "respond_to_elicitation",
            "Answer a question of a server. To accept a form, give the fields it asked for as content; ask the person "
            "you work for if you do not know them.",
            (
                _REQUEST_ID,
                _TASK_ID,
                Parameter("action", Kind.TEXT, "accept, decline or cancel.", required=True, choices=ACTIONS),
                Parameter("content", Kind.OBJECT, "The filled-in form, for accept."),
            ),
            Family.HELPER,
            reads_only=False,
        ),
        respond_to_elicitation,
    ),
    OwnTool(
        ToolFace(
            "get_sampling_requests",
            "Show the messages that servers ask you to write (sampling). Answer them with respond_to_sampling.",
            (_SERVER,),
            Family.HELPER,
        ),
        get_sampling_requests,
    ),
    OwnTool(
        ToolFace(
            "respond_to_sampling",
            "Answer a server that asked for a message from a language model.",
            (
                _REQUEST_ID,
                _TASK_ID,
                Parameter("role", Kind.TEXT, "Who speaks.", default="assistant", choices=("assistant", "user")),
                Parameter("content", Kind.ANYTHING, "The message: text, or a content block.", required=True),
                Parameter("model", Kind.TEXT, "The model that wrote it.", required=True),
                Parameter("stop_reason", Kind.TEXT, "Why it ended, for example endTurn."),
            ),
            Family.HELPER,
            reads_only=False,
        ),
        respond_to_sampling,
    ),
    OwnTool(
        ToolFace(
            "cancel_elicitation_request",
            "Tell a server that nobody will answer its question.",
            (_REQUEST_ID, _TASK_ID, _REASON),
            reads_only=False,
        ),
        cancel_elicitation_request,
    ),
    OwnTool(
        ToolFace(
            "cancel_sampling_request",
            "Tell a server that nobody will write the message it asked for.",
            (_REQUEST_ID, _TASK_ID, _REASON),
            reads_only=False,
        ),
        cancel_sampling_request,
    ),
)
