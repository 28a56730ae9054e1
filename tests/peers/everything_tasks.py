"""The tasks extension of 2026-07-28 as the official suite exercises it, on the everything-server.

Tasks live in memory and end with the process. A caller that does not declare the extension gets a plain answer, or
-32021 for a tool that cannot run without one. Behind Taskgate the same tools are also served by a server without this
board, because there the gateway itself provides the tasks.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from everything_inputs import NAME, content, form
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import RequestParams
from server_base_23 import INVALID_PARAMS, MISSING_CAPABILITY, Call, NeedsInput, Tool, Wire, text

EXTENSION = "io.modelcontextprotocol/tasks"
HEADER_MISMATCH = -32020
TERMINAL = {"completed", "failed", "cancelled"}
NOTHING: Wire = {"type": "object", "properties": {}}
REQUIRED = {"failing_job", "test_tool_with_task"}


class TaskParams(RequestParams):
    taskId: str
    inputResponses: dict[str, Any] | None = None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Task:
    """One running tool; questions it asks wait here for tasks/update."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    status: str = "working"
    created: str = field(default_factory=now)
    updated: str = field(default_factory=now)
    outcome: Wire = field(default_factory=dict)
    questions: dict[str, Wire] = field(default_factory=dict)
    answers: dict[str, asyncio.Future[Wire]] = field(default_factory=dict)
    work: asyncio.Task[None] | None = None

    def summary(self) -> Wire:
        times = {"createdAt": self.created, "lastUpdatedAt": self.updated}
        return {"taskId": self.id, "status": self.status, **times, "ttlMs": 600_000, "pollIntervalMs": 100}

    def detail(self) -> Wire:
        pending = {"inputRequests": self.questions} if self.status == "input_required" else {}
        return {**self.summary(), **pending, **self.outcome}

    def move(self, status: str, **outcome: Any) -> None:
        if self.status not in TERMINAL:
            self.status, self.updated, self.outcome = status, now(), outcome

    async def ask(self, requests: dict[str, Wire]) -> Wire:
        keys = {f"{name}-{secrets.token_hex(3)}": name for name in requests}
        loop = asyncio.get_running_loop()
        for key, name in keys.items():
            self.questions[key], self.answers[key] = requests[name], loop.create_future()
        self.move("input_required")
        return {name: await self.answers[key] for key, name in keys.items()}

    def answer(self, responses: dict[str, Any]) -> None:
        for key in [key for key in responses if key in self.questions]:
            del self.questions[key]
            self.answers[key].set_result(responses[key])
        if not self.questions and self.status == "input_required":
            self.move("working")


class TaskCall(Call):
    """The same call, running as a task: questions wait on the board instead of ending the request."""

    def __init__(self, call: Call, task: Task) -> None:
        super().__init__(call.context, call.params, call.answered)
        self.task = task

    async def ask_all(self, requests: dict[str, Wire]) -> Wire:
        return await self.task.ask(requests)

    async def progress(self, done: float, total: float, message: str | None = None) -> None:
        return None

    async def log(self, level: Any, data: Any) -> None:
        return None


class TaskBoard:
    """All tasks of this process, and the three methods that reach them."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.open = True

    def register(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    def offering(self, name: str, tool: Tool) -> Tool:
        """Run a task tool as a task when the caller can poll, otherwise in the foreground where that is possible."""

        async def dispatch(call: Call) -> Wire:
            if name not in TASK_TOOLS or name == "greet" or not self.open:
                return await tool(call)
            if not call.stateless or EXTENSION not in (call.capabilities.get("extensions") or {}):
                if name in REQUIRED:
                    refuse_without_extension()
                return await tool(call)
            if name == "test_tool_with_task" and "user_name" not in call.answered:
                raise NeedsInput({"user_name": NAME}, {})
            return self.start(call, tool)

        return dispatch

    def start(self, call: Call, tool: Tool) -> Wire:
        task = Task()
        self.tasks[task.id] = task
        task.work = asyncio.create_task(run(task, TaskCall(call, task), tool))
        return {"resultType": "task", **task.summary()}

    def find(self, context: Any, params: TaskParams) -> Task:
        capabilities = (dict(context.params or {}).get("_meta") or {}).get("io.modelcontextprotocol/clientCapabilities")
        if EXTENSION not in ((capabilities or {}).get("extensions") or {}):
            refuse_without_extension()
        request = context.request
        if request is not None and request.headers.get("mcp-name") != params.taskId:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match params.taskId")
        if params.taskId not in self.tasks:
            raise MCPError(INVALID_PARAMS, "Unknown task")
        return self.tasks[params.taskId]

    async def get(self, context: Any, params: TaskParams) -> Wire:
        return {"resultType": "complete", **self.find(context, params).detail()}

    async def update(self, context: Any, params: TaskParams) -> Wire:
        self.find(context, params).answer(params.inputResponses or {})
        return {"resultType": "complete"}

    async def cancel(self, context: Any, params: TaskParams) -> Wire:
        task = self.find(context, params)
        task.move("cancelled")
        if task.work is not None:
            task.work.cancel()
        return {"resultType": "complete"}


def refuse_without_extension() -> None:
    data = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    raise MCPError(MISSING_CAPABILITY, "this needs the tasks extension", data)


async def run(task: Task, call: TaskCall, tool: Tool) -> None:
    try:
        task.move("completed", result={"resultType": "complete", **await tool(call)})
    except MCPError as error:
        task.move("failed", error={"code": error.code, "message": error.message})


async def greet(call: Call) -> Wire:
    return text(f"Hello, {call.arguments['name']}!")


async def slow_compute(call: Call) -> Wire:
    # In the foreground it cannot be cancelled, and the suite requires a minute.
    seconds = float(call.arguments["seconds"])
    await asyncio.sleep(seconds if isinstance(call, TaskCall) else min(seconds, 3))
    return text(f"computed {call.arguments.get('label', '')}")


async def failing_job(call: Call) -> Wire:
    return text("the job failed as it should", isError=True)


async def protocol_error_job(call: Call) -> Wire:
    raise MCPError(-32603, "the job broke the protocol as it should")


async def confirm_delete(call: Call) -> Wire:
    answers = await call.ask_all({"confirm": form(f"Delete {call.arguments['filename']}?", confirm="boolean")})
    return text(f"confirm: {answers['confirm'].get('action')}")


async def multi_input(call: Call) -> Wire:
    await call.ask_all({"first": form("First?", value="string"), "second": form("Second?", value="string")})
    return text("both answered")


async def test_tool_with_task(call: Call) -> Wire:
    answers = call.answered if "user_name" in call.answered else await call.ask_all({"user_name": NAME})
    if not isinstance(call, TaskCall):
        # Worth a task to a gateway that makes the tasks itself.
        await asyncio.sleep(2)
    return text(f"Hello, {content(answers['user_name'], 'name')}!")


def schema(**properties: str) -> Wire:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}


TASK_TOOLS: dict[str, tuple[Tool, Wire]] = {
    "greet": (greet, schema(name="string")),
    "slow_compute": (slow_compute, schema(seconds="number", label="string")),
    "failing_job": (failing_job, NOTHING),
    "protocol_error_job": (protocol_error_job, NOTHING),
    "confirm_delete": (confirm_delete, schema(filename="string")),
    "multi_input": (multi_input, NOTHING),
    "test_tool_with_task": (test_tool_with_task, NOTHING),
}
