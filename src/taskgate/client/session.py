"""The public API of a connection to one MCP server: tools, tasks, prompts and resources.

A dialect converts requests to the protocol generation in use, and a transport sends them. `connect` creates sessions. Not
thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from taskgate.client.conversation import Conversation
from taskgate.client.dialect import Dialect
from taskgate.client.errors import ClientError, Question, ServerError, TaskNotFound, TasksNotSupported
from taskgate.client.following import Following
from taskgate.client.inbound import Listener
from taskgate.client.messages import Message
from taskgate.client.options import Generation, OnProgress, Options
from taskgate.client.results import Listed, Progress, Task, TaskSupport, Tool, ToolResult
from taskgate.client.rounds import converse
from taskgate.client.stateless import HEADER_MISMATCH, Stateless
from taskgate.client.task_ending import UNKNOWN_TASK
from taskgate.client.task_handle import TaskHandle
from taskgate.client.transport import Transport
from taskgate.mcp.param_headers import InvalidParamHeader, param_headers_of

ASK_FOR_TASK = "taskgate/task"
"""`_meta` key of a stateless call: a Taskgate gateway returns a task handle at once."""
ASK_FOR_TTL = "taskgate/ttl"
"""`_meta` key of a stateless call: the ttl of the task in milliseconds."""
KEY = "taskgate/idempotencyKey"
"""`_meta` key of a call: a Taskgate gateway runs calls with the same key only once."""


class Session:
    """A connection to one MCP server. Every method that waits accepts `timeout` in seconds and has a default."""

    def __init__(self, options: Options) -> None:
        self._conversation = Conversation(options)
        self._following = Following(self._conversation)
        self._tools: dict[str, Tool] | None = None
        self.on("notifications/tools/list_changed", self._forget_tools)

    @property
    def generation(self) -> Generation:
        return self._conversation.generation

    @property
    def protocol_version(self) -> str:
        return self._conversation.dialect.version

    @property
    def server_capabilities(self) -> Mapping[str, Any]:
        return self._conversation.dialect.capabilities

    @property
    def server_info(self) -> Mapping[str, Any]:
        return self._conversation.dialect.server_info

    @property
    def instructions(self) -> str | None:
        return self._conversation.dialect.instructions

    @property
    def supports_tasks(self) -> bool:
        return self._conversation.options.tasks and self._conversation.dialect.runs_tasks()

    @property
    def ticket(self) -> dict[str, Any] | None:
        """Credentials to continue this session in another process with `connect(url, ticket=...)`.

        Needed for stateful servers that know a task only in the session that created it. JSON; keep it secret. Open the
        session with `keep_session=True`, otherwise closing it ends it.
        """
        return self._conversation.ticket

    @property
    def active_tasks(self) -> Mapping[str, TaskHandle]:
        """The tasks that this session follows, by id. An ended task stays until its result is collected."""
        return dict(self._following.handles)

    async def list_tools(self, timeout: float | None = None) -> list[Tool]:
        """Return all tools, from all pages."""
        tools = [Tool.from_wire(raw) async for raw in self._conversation.pages("tools/list", "tools", timeout)]
        if self.generation is Generation.STATELESS:
            tools = [tool for tool in tools if _has_valid_headers(tool)]
        self._tools = {tool.name: tool for tool in tools}
        return tools

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Call a tool and return its result. If the server makes the call a task, wait until the task ends.

        `key` is an idempotency key: a Taskgate gateway runs calls of one caller with the same key once, and returns the first
        result for each repetition. Other servers ignore it.
        """
        meta = _with_key(meta, key)
        limit = self._conversation.options.call_timeout if timeout is None else timeout
        outcome: ToolResult | TaskHandle | None = None
        if self.generation is Generation.STATEFUL and self.supports_tasks:
            tool = await self._find_tool(name)
            if tool is not None and tool.task_support is TaskSupport.REQUIRED:
                outcome = await self.call_tool_as_task(name, arguments, on_progress=on_progress, meta=meta)
        if outcome is None:
            outcome = await self._call(name, arguments, limit, on_progress, meta)
        if not isinstance(outcome, TaskHandle):
            return outcome
        if outcome.approval is not None and on_progress is not None:
            # As a gateway reports it for a call that did not become a task.
            on_progress(
                Progress(
                    progress=0.0,
                    total=None,
                    message=outcome.immediate_response,
                    approval=outcome.approval,
                    task_id=outcome.task_id,
                )
            )
        return await outcome.result(limit)

    async def run_script(
        self,
        code: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        resume_of: str | None = None,
        ttl: int | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,
    ) -> ToolResult:
        """Run a script at a Taskgate gateway and return its result; `structured_content["result"]` is the value of its last line.

        It runs as a task if the gateway offers tasks to this client, so it survives a lost connection. `resume_of` is the task of a
        script that failed: calls that it made are not repeated, and their results are used.
        """
        given: dict[str, Any] = {"code": code, "inputs": dict(inputs or {})}
        if resume_of is not None:
            given["resume_of"] = resume_of
        if ttl is not None:
            given["ttl"] = ttl
        if not self.supports_tasks:
            return await self.call_tool("run_script", given, timeout=timeout, on_progress=on_progress, key=key)
        handle = await self.call_tool_as_task("run_script", given, ttl=ttl, on_progress=on_progress, key=key)
        return await handle.result(timeout)

    async def call_tool_as_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: int | None = None,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        key: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> TaskHandle:
        """Start a call as a task and return at once.

        `ttl` is the requested time to keep the task, in milliseconds. `key` is an idempotency key as in `call_tool`: the same
        key returns the same task, even after a restart of this program.

        Raises `TasksNotSupported`, before anything is sent, if the server or the tool does not support tasks. A stateless
        server other than a Taskgate gateway decides itself whether the call becomes a task, and its ttl; if it returns a result,
        the handle is complete and has no `task_id`.
        """
        if not self.supports_tasks:
            raise TasksNotSupported("this server does not run tool calls as tasks")
        meta = _with_key(meta, key)
        augment: dict[str, Any] | None = None
        if self.generation is Generation.STATEFUL:
            tool = await self._find_tool(name)
            if tool is None or tool.task_support is TaskSupport.FORBIDDEN:
                raise TasksNotSupported(f"the tool {name!r} does not run as a task")
            augment = {} if ttl is None else {"ttl": ttl}
        else:
            # In the stateless generation the server decides; a Taskgate gateway honours this request.
            meta = {**(meta or {}), ASK_FOR_TASK: True, **({} if ttl is None else {ASK_FOR_TTL: ttl})}
        limit = self._conversation.options.request_timeout if timeout is None else timeout
        outcome = await self._call(name, arguments, limit, on_progress, meta, augment=augment, as_task=True)
        return outcome if isinstance(outcome, TaskHandle) else TaskHandle.answered(self._following, outcome)

    async def get_task(self, task_id: str, timeout: float | None = None) -> Task:
        """Return the current state of a task. Raises `TaskNotFound`."""
        try:
            return await self._following.read_task(task_id, timeout)
        except ServerError as error:
            if error.code == UNKNOWN_TASK:
                raise TaskNotFound(task_id, f"the server has no task {task_id}") from error
            raise

    async def get_task_result(self, task_id: str, timeout: float | None = None) -> ToolResult:
        """Wait until the task ends, and return its result."""
        handle = self._following.handles.get(task_id) or await self.resume_task(task_id)
        return await handle.result(timeout)

    async def list_tasks(self, timeout: float | None = None) -> list[Task]:
        """Return all tasks that the server lists for this caller. Raises `TasksNotSupported` in the stateless generation."""
        if self.generation is Generation.STATELESS:
            raise TasksNotSupported("MCP 2026-07-28 has no list of tasks: keep the ids and use resume_task")
        return [
            self._conversation.dialect.task(raw)
            async for raw in self._conversation.pages("tasks/list", "tasks", timeout)
        ]

    async def tasks(self, timeout: float | None = None) -> list[Task]:
        """Return this caller's open and ended tasks, newest first, in both generations.

        A stateless server must be a Taskgate gateway. Without a token, only tasks of this session are returned.
        """
        if self.generation is Generation.STATEFUL:
            return await self.list_tasks(timeout)
        return await self._following.inbox.tasks(timeout)

    async def inbox(self, timeout: float | None = None) -> list[Question]:
        """Return the open questions for this caller at a Taskgate gateway, including those of the caller's other sessions.

        Empty for other servers.
        """
        return await self._following.inbox.questions(timeout)

    async def answer_inbox(self, question: Question, answer: Mapping[str, Any], timeout: float | None = None) -> None:
        """Answer a question of `inbox`. Raises `ServerError` if it is no longer open, or if the answer does not match its form."""
        await self._following.inbox.respond(question, answer, timeout)

    async def cancel_task(self, task_id: str, timeout: float | None = None) -> Task:
        """Cancel a task, and return its state afterwards."""
        return await self._following.cancel_task(task_id, timeout)

    async def resume_task(self, task_id: str, on_progress: OnProgress | None = None) -> TaskHandle:
        """Follow a task by its id, which may come from another process."""
        if task_id in self._following.handles:
            return self._following.handles[task_id]
        task = await self.get_task(task_id)
        handle = TaskHandle(self._following, task, on_progress=on_progress)
        handle.resumed(task)
        self._following.follow(handle, task)
        return handle

    async def list_prompts(self, timeout: float | None = None) -> list[Listed]:
        return [Listed.from_wire(raw) async for raw in self._conversation.pages("prompts/list", "prompts", timeout)]

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        return await converse(
            self._conversation, "prompts/get", params, timeout or self._conversation.options.request_timeout
        )

    async def list_resources(self, timeout: float | None = None) -> list[Listed]:
        return [Listed.from_wire(raw) async for raw in self._conversation.pages("resources/list", "resources", timeout)]

    async def list_resource_templates(self, timeout: float | None = None) -> list[Listed]:
        pages = self._conversation.pages("resources/templates/list", "resourceTemplates", timeout)
        return [Listed.from_wire(raw) async for raw in pages]

    async def read_resource(self, uri: str, timeout: float | None = None) -> dict[str, Any]:
        return await converse(
            self._conversation, "resources/read", {"uri": uri}, timeout or self._conversation.options.request_timeout
        )

    async def subscribe(self, uri: str, timeout: float | None = None) -> None:
        """Subscribe to changes of a resource; receive them with `on("notifications/resources/updated", ...)`."""
        if self.generation is Generation.STATELESS:
            self._conversation.subscriptions.add_resource(uri)
        else:
            await self._conversation.request("resources/subscribe", {"uri": uri}, timeout=timeout)

    async def unsubscribe(self, uri: str, timeout: float | None = None) -> None:
        if self.generation is Generation.STATELESS:
            self._conversation.subscriptions.drop_resource(uri)
        else:
            await self._conversation.request("resources/unsubscribe", {"uri": uri}, timeout=timeout)

    async def watch_lists(self) -> None:
        """Subscribe to changes of the lists of tools, prompts and resources. Stateful servers send them without it."""
        if self.generation is Generation.STATELESS:
            self._conversation.subscriptions.add_lists()

    async def complete(
        self,
        ref: Mapping[str, Any],
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Return suggestions for an argument of a prompt or a resource template."""
        params: dict[str, Any] = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        result = await self._conversation.request("completion/complete", params, timeout=timeout)
        completion = result.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [str(each) for each in values] if isinstance(values, list) else []

    async def ping(self, timeout: float | None = None) -> None:
        """Check that the server responds. The stateless generation has no ping, so `server/discover` is used."""
        method = "ping" if self.generation is Generation.STATEFUL else "server/discover"
        await self._conversation.request(method, {}, timeout=timeout)

    async def set_log_level(self, level: str | None, timeout: float | None = None) -> None:
        """Request log messages of at least this level; receive them with `on("notifications/message", ...)`."""
        if isinstance(self._conversation.dialect, Stateless):
            self._conversation.dialect.set_log_level(level)
        elif level is not None:
            await self._conversation.request("logging/setLevel", {"level": level}, timeout=timeout)

    async def roots_changed(self) -> None:
        """Notify a stateful server that the roots changed."""
        if self.generation is Generation.STATEFUL:
            await self._conversation.notify("notifications/roots/list_changed")

    def on(self, method: str, listener: Listener) -> Callable[[], None]:
        """Call `listener(params)` for each notification of `method`. Returns a function that removes the listener."""
        return self._conversation.on(method, listener)

    @property
    def questions(self) -> Mapping[str, Question]:
        """Open questions for `answer`, of tasks and of plain calls (with `answer_by_hand`)."""
        return self._conversation.answering.parked()

    def answer(self, key: str, answer: Mapping[str, Any]) -> bool:
        """Answer a question of `questions` that belongs to no task. Returns False if the key is unknown."""
        return self._conversation.answering.give(key, answer)

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send any other request and return its result unchanged."""
        return await self._conversation.request(method, dict(params or {}), timeout=timeout)

    def deliver(self, message: Message) -> None:
        """Take a message that the server sent on its own account. Called by transports."""
        self._conversation.deliver(message)

    async def begin(self, transport: Transport, dialect: Dialect) -> None:
        await self._conversation.begin(transport, dialect)

    async def close(self) -> None:
        await self._following.close()
        await self._conversation.close()

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        timeout: float,
        on_progress: OnProgress | None,
        meta: Mapping[str, Any] | None,
        *,
        augment: dict[str, Any] | None = None,
        as_task: bool = False,
    ) -> ToolResult | TaskHandle:
        params: dict[str, Any] = {"name": name, "arguments": arguments if arguments is not None else {}}
        keyed = KEY in (meta or {})
        if meta:
            params["_meta"] = dict(meta)
        if augment is not None:
            params["task"] = augment
        if on_progress is None and not as_task:
            return self._read_outcome(await self._call_with_headers(name, params, timeout), None, None, keyed=keyed)
        token = self._following.expect_progress(on_progress)
        params["_meta"] = {**params.get("_meta", {}), "progressToken": token}
        outcome: ToolResult | TaskHandle | None = None
        try:
            result = await self._call_with_headers(name, params, timeout)
            outcome = self._read_outcome(result, token, on_progress, keyed=keyed)
            return outcome
        finally:
            if not isinstance(outcome, TaskHandle):
                self._following.drop_progress(token)

    def _read_outcome(
        self, result: dict[str, Any], token: str | None, on_progress: OnProgress | None, *, keyed: bool
    ) -> ToolResult | TaskHandle:
        task = self._conversation.dialect.created_task(result) if "content" not in result else None
        if task is None:
            return ToolResult(result)
        known = self._following.handles.get(task.task_id)
        if known is not None and keyed:
            return known
        handle = TaskHandle(self._following, task, token=token, on_progress=on_progress)
        handle.suggested(result)
        if token is not None:
            self._following.pass_progress(token, handle)
        self._following.follow(handle, task)
        return handle

    async def _call_with_headers(self, name: str, params: dict[str, Any], timeout: float) -> dict[str, Any]:
        with self._following.open_call():
            return await self._converse(name, params, timeout)

    async def _converse(self, name: str, params: dict[str, Any], timeout: float) -> dict[str, Any]:
        tool = self._tools.get(name) if self._tools is not None else None
        try:
            return await converse(self._conversation, "tools/call", params, timeout, tool)
        except ServerError as error:
            if error.code != HEADER_MISMATCH or self.generation is Generation.STATEFUL:
                raise
        # The cached schema of the tool is outdated, so its headers were wrong. The server refused before execution.
        self._tools = None
        return await converse(self._conversation, "tools/call", params, timeout, await self._find_tool(name))

    async def _find_tool(self, name: str) -> Tool | None:
        if self._tools is None:
            try:
                await self.list_tools()
            except ServerError:
                self._tools = {}  # a server may accept calls without listing tools
            except ClientError as error:
                error.no_call_was_sent()
                raise
        return (self._tools or {}).get(name)

    def _forget_tools(self, params: Mapping[str, Any]) -> None:
        self._tools = None


def _with_key(meta: Mapping[str, Any] | None, key: str | None) -> Mapping[str, Any] | None:
    return meta if key is None else {**(meta or {}), KEY: key}


def _has_valid_headers(tool: Tool) -> bool:
    """Whether the tool's `x-mcp-header` annotations are valid; otherwise 2026-07-28 forbids to use it."""
    try:
        param_headers_of(tool.input_schema)
    except InvalidParamHeader:
        return False
    return True
