"""Own tool that runs any tool of any server. A call that exceeds the given time continues as a task."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.catalog.output_schema import task_notice
from taskgate.core.catalog.own_tool_names import OwnToolName
from taskgate.core.catalog.own_tools import ArgumentKind, Parameter, ToolFace, wait_parameter
from taskgate.core.delivery import Delivery, ReplyForm
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation
from taskgate.core.tasks.projections_tools import proxy_task
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.calls.call_tool import ToolCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.own_tools.inner_request import inner_request
from taskgate.gateway.own_tools.tool import SERVER, OwnTool, TaskParts, ToolReply, max_wait_s, relayed, text_reply
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.requests.request import Request

DEFAULT_MS: Final = 120_000


class ExecuteParts(msgspec.Struct, frozen=True):
    lookup: Lookup
    tool_calls: ToolCalls
    following: TaskParts


async def execute_tool(parts: ExecuteParts, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    server, tool, timeout_ms = given["server"], given["tool"], given["timeout_ms"]
    view = await parts.lookup.serving(request, server)
    wire_name = view.tool_names.to_wire.get((server, tool))
    if wire_name is None or wire_name not in view.tools or not view.tools[wire_name].is_for_model:
        text = f"{server} has no tool {tool[:120]!r} here. list_tools shows what there is."
        raise CallerError("unknown_tool", text, data={"server": server, "tool": tool[:120]})
    feed = await parts.following.activity.feed(request)
    inner = inner_request(
        parts.following.activity, request, feed, server, "tools/call", params=_params(request, wire_name)
    )
    wait_s = max_wait_s(parts.following.tasks.promotions, request, timeout_ms)
    inner.delivery.set_mode(
        Delivery(wait_s, request.progress_token is not None, ReplyForm.SENTENCE),
        lambda task, _waited: _promoted(parts.following, inner, feed, task, round(wait_s * 1000)),
    )
    result = await parts.tool_calls.call(inner)
    if request.delivery.answered:
        return b"{}"
    return result if _question_or_task(request, result) else relayed(result)


def _params(request: Request, wire_name: str) -> dict[str, Raw]:
    """Return the call's parameters: the caller's exact argument bytes, and the tool's name in this scope."""
    given = wire.members_of(request.members()["arguments"])
    return {"name": wire.raw(wire_name), "arguments": given.get("args", Raw(b"{}"))}


def _question_or_task(request: Request, result: bytes) -> bool:
    """Return whether a stateless caller gets input requests or a task handle, which are passed unchanged."""
    if request.generation is not Generation.STATELESS:
        return False
    kind = bytes(wire.members_of(result).get("resultType", Raw(b'"complete"')))
    return kind != b'"complete"'


def _promoted(parts: TaskParts, request: Request, feed: Feed, task: Task, timeout_ms: int) -> bytes:
    """Return the reply at the timeout: a sentence, the task, and the server's other running calls."""
    now = parts.tasks.store.now_ms()
    text = (
        f"Tool call exceeded timeout ({timeout_ms}ms). Promoted to task {task.id}. "
        "Use get_task_result to retrieve the result when ready."
    )
    if task.state is TaskState.AWAITING_APPROVAL:
        text = (
            f"This call needs the approval of a person, which was not given within {timeout_ms}ms; the tool has not run. "
            f"The call waits as task {task.id}. Use get_task_result to retrieve the result when ready."
        )
    if request.delivery.joined is not None:
        text = f"{text} {request.delivery.joined.sentence()}"
    others = [other for other in feed.open_tasks.values() if other.server == task.server and other.id != task.id]
    pending = {
        "tasks": [proxy_task(shown, now) for shown in (task, *others)],
        "elicitations_for_server": parts.activity.inbox.elicitations(request, task.server),
    }
    reply = text_reply(text, {"proxy_task": proxy_task(task, now), "pending_on_server": pending})
    notice = wire.raw(task_notice(task.id, "working", text))
    return replace(reply, rest={"structuredContent": notice}).encoded(request.generation)


EXECUTE_TOOLS: Final = (
    OwnTool(
        ToolFace(
            OwnToolName.EXECUTE_TOOL,
            "Run a tool of a server. If it takes longer than timeout_ms, it continues in the background as a task, and "
            "the reply has its task id.",
            (
                SERVER,
                Parameter("tool", ArgumentKind.TEXT, "The tool's own name, as list_tools shows it.", required=True),
                Parameter("args", ArgumentKind.OBJECT, "The arguments of the tool."),
                wait_parameter(DEFAULT_MS, "How long to wait for the result, in milliseconds."),
            ),
            reads_only=False,
        ),
        execute_tool,
    ),
)
