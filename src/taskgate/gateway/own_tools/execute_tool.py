"""Running any tool of any server through one tool, with a promise about time: a call that takes longer goes on as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskgate.core import wire
from taskgate.core.catalog.own_tools import Kind, Parameter, ToolFace, wait_parameter
from taskgate.core.delivery import Delivery, Form
from taskgate.core.errors import CallerError
from taskgate.core.generations import Generation
from taskgate.core.tasks import projections
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.calls.call_tool import call_tool
from taskgate.gateway.own_tools.inner import inner_request
from taskgate.gateway.own_tools.tool import SERVER, OwnTool, ToolReply, patience_s, relayed, saying, served
from taskgate.gateway.questions.feed import Feed
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

DEFAULT_MS: Final = 120_000


async def execute_tool(context: Context, request: Request, given: dict[str, Any]) -> ToolReply | bytes:
    server, tool, timeout_ms = given["server"], given["tool"], given["timeout_ms"]
    view = await served(context, request, server)
    wire_name = view.tool_names.to_wire.get((server, tool))
    if wire_name is None or wire_name not in view.tools:
        raise CallerError("unknown_tool", f"{server} has no tool {tool[:120]!r} here. list_tools shows what there is.")
    feed = await context.activity.feed(request)
    inner = inner_request(context, request, feed, server, "tools/call", params=_params(request, wire_name))
    wait_s = patience_s(context, request, timeout_ms)
    inner.delivery.deliver(
        Delivery(wait_s, request.progress_token is not None, Form.SENTENCE),
        lambda task, _waited: _promoted(context, request, feed, task, round(wait_s * 1000)),
    )
    result = await call_tool(context, inner)
    if request.delivery.answered:
        return b"{}"
    return result if _asks_or_hands_over(request, result) else relayed(result)


def _params(request: Request, wire_name: str) -> dict[str, Raw]:
    """The caller's own bytes for the arguments, under the name this scope knows the tool by."""
    given = wire.members_of(request.members()["arguments"])
    return {"name": wire.raw(wire_name), "arguments": given.get("args", Raw(b"{}"))}


def _asks_or_hands_over(request: Request, result: bytes) -> bool:
    """A stateless caller may get questions or a task handle instead of a result: those pass as they are."""
    if request.generation is not Generation.STATELESS:
        return False
    kind = bytes(wire.members_of(result).get("resultType", Raw(b'"complete"')))
    return kind != b'"complete"'


def _promoted(context: Context, request: Request, feed: Feed, task: Task, timeout_ms: int) -> bytes:
    """The reply when time is up: a sentence, then the task and what else this server is busy with."""
    now = context.tasks.store.now_ms()
    text = (
        f"Tool call exceeded timeout ({timeout_ms}ms). Promoted to task {task.id}. "
        "Use get_task_result to retrieve the result when ready."
    )
    if task.state is TaskState.AWAITING_APPROVAL:
        text = (
            f"A person must approve this call first; nobody has within {timeout_ms}ms, and the tool has not run. "
            f"The call waits as task {task.id}. Use get_task_result to retrieve the result when ready."
        )
    others = [other for other in feed.open_tasks.values() if other.server == task.server and other.id != task.id]
    pending = {
        "tasks": [projections.proxy_task(shown, now) for shown in (task, *others)],
        "elicitations_for_server": context.activity.inbox.elicitations(request, task.server),
    }
    reply = saying(text, {"proxy_task": projections.proxy_task(task, now), "pending_on_server": pending})
    return reply.encoded(request.generation)


TOOLS: Final = (
    OwnTool(
        ToolFace(
            "execute_tool",
            "Run a tool of a server. If it takes longer than timeout_ms it goes on in the background as a task, and "
            "the reply names the task to ask for later.",
            (
                SERVER,
                Parameter("tool", Kind.TEXT, "The tool's own name, as list_tools shows it.", required=True),
                Parameter("args", Kind.OBJECT, "The arguments of the tool."),
                wait_parameter(DEFAULT_MS, "How long to wait for the result, in milliseconds."),
            ),
            reads_only=False,
        ),
        execute_tool,
    ),
)
