"""A conversation with one MCP server: everything a program asks of it.

The session speaks of tools, tasks, prompts and resources; a dialect spells that for the generation in use and a
carrier takes it there. It owns the poller, the receiving side and everything that runs beside them. Made by
`connect`; not thread-safe.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from taskgate.client.errors import (
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidReply,
    ServerError,
    SessionExpired,
    TaskNotFound,
    TasksNotSupported,
)
from taskgate.client.generations.dialect import Dialect
from taskgate.client.generations.param_headers import InvalidParamHeader, param_headers
from taskgate.client.generations.stateful import shake_hands
from taskgate.client.generations.stateless import HEADER_MISMATCH, Stateless
from taskgate.client.inbound import Inbound, Listener
from taskgate.client.options import Generation, OnProgress, Options
from taskgate.client.poller import Poller, next_delay
from taskgate.client.questions import Answering
from taskgate.client.results import Listed, Progress, Question, Task, TaskSupport, TaskUpdate, Tool, ToolResult
from taskgate.client.rounds import converse
from taskgate.client.subscriptions import Subscriptions
from taskgate.client.task_handle import UNKNOWN_TASK, TaskHandle
from taskgate.client.transport.carrier import Carrier
from taskgate.client.transport.streamable import StreamableHttp
from taskgate.client.wire import Message, encode

NOTICE_TIMEOUT = 5.0


class Session:
    """See the module's docstring. Every method that waits takes `timeout` in seconds and has a default."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.answering = Answering(options)
        self.answering.on_parked = self._on_parked
        self._inbound = Inbound(options, self.answering, self._post)
        self._poller = Poller(options.poll_concurrency)
        self._subscriptions = Subscriptions(self._listen)
        self._ids = itertools.count(1)
        self._handles: dict[str, TaskHandle] = {}
        self._progress: dict[str, Callable[[Progress], None]] = {}
        self._tools: dict[str, Tool] | None = None
        self._renewing = asyncio.Lock()
        self._carrier: Carrier
        self._dialect: Dialect
        self._listen_to_server()

    # Who is on the other side.

    @property
    def generation(self) -> Generation:
        return self._dialect.generation

    @property
    def protocol_version(self) -> str:
        return self._dialect.version

    @property
    def server_capabilities(self) -> Mapping[str, Any]:
        return self._dialect.capabilities

    @property
    def server_info(self) -> Mapping[str, Any]:
        return self._dialect.server_info

    @property
    def instructions(self) -> str | None:
        return self._dialect.instructions

    @property
    def supports_tasks(self) -> bool:
        return self.options.tasks and self._dialect.runs_tasks()

    @property
    def active_tasks(self) -> Mapping[str, TaskHandle]:
        """The tasks this session follows, by id; an ended task stays until its result is collected."""
        return dict(self._handles)

    # Tools.

    async def list_tools(self, timeout: float | None = None) -> list[Tool]:
        """All tools, all pages."""
        tools = [Tool.from_wire(raw) async for raw in self._pages("tools/list", "tools", timeout)]
        if self.generation is Generation.STATELESS:
            tools = [tool for tool in tools if _usable(tool)]
        self._tools = {tool.name: tool for tool in tools}
        return tools

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Call a tool and return its result. If the server makes the call a task, the task is driven to its end."""
        limit = self.options.call_timeout if timeout is None else timeout
        if self.generation is Generation.STATEFUL and self.supports_tasks:
            tool = await self._find_tool(name)
            if tool is not None and tool.task_support is TaskSupport.REQUIRED:
                handle = await self.call_tool_as_task(name, arguments, on_progress=on_progress, meta=meta)
                return await handle.result(limit)
        outcome = await self._call(name, arguments, limit, on_progress, meta, None)
        return await outcome.result(limit) if isinstance(outcome, TaskHandle) else outcome

    async def call_tool_as_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: int | None = None,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> TaskHandle:
        """Start a call as a task and return at once. `ttl` (milliseconds) is a wish; only stateful servers take
        it.

        Raises `TasksNotSupported`, before anything is sent, where the server or the tool runs no tasks. A
        stateless server decides by itself; if it answers at once the handle is already complete and has no
        `task_id`.
        """
        if not self.supports_tasks:
            raise TasksNotSupported("this server does not run tool calls as tasks")
        augment: dict[str, Any] | None = None
        if self.generation is Generation.STATEFUL:
            tool = await self._find_tool(name)
            if tool is None or tool.task_support is TaskSupport.FORBIDDEN:
                raise TasksNotSupported(f"the tool {name!r} does not run as a task")
            augment = {} if ttl is None else {"ttl": ttl}
        limit = self.options.request_timeout if timeout is None else timeout
        outcome = await self._call(name, arguments, limit, on_progress, meta, augment, as_task=True)
        return outcome if isinstance(outcome, TaskHandle) else TaskHandle.answered(self, outcome)

    # Tasks.

    async def get_task(self, task_id: str, timeout: float | None = None) -> Task:
        """The state of a task now."""
        try:
            return await self.read_task(task_id, timeout)
        except ServerError as error:
            if error.code == UNKNOWN_TASK:
                raise TaskNotFound(task_id, f"the server does not know task {task_id}") from error
            raise

    async def get_task_result(self, task_id: str, timeout: float | None = None) -> ToolResult:
        """Wait until the task has ended and return its result."""
        handle = self._handles.get(task_id) or await self.resume_task(task_id)
        return await handle.result(timeout)

    async def list_tasks(self, timeout: float | None = None) -> list[Task]:
        """All tasks the server lists for this caller, all pages. The stateless generation has no such list."""
        if self.generation is Generation.STATELESS:
            raise TasksNotSupported("MCP 2026-07-28 has no list of tasks: keep the ids and use resume_task")
        return [self._dialect.task(raw) async for raw in self._pages("tasks/list", "tasks", timeout)]

    async def cancel_task(self, task_id: str, timeout: float | None = None) -> Task:
        """Ask the server to cancel a task; returns its state afterwards."""
        result = await self.request("tasks/cancel", {"taskId": task_id}, timeout=timeout)
        if self.generation is Generation.STATEFUL:
            return self._dialect.task(result)
        return await self.get_task(task_id, timeout)

    async def resume_task(self, task_id: str, on_progress: OnProgress | None = None) -> TaskHandle:
        """Follow a task again, by an id that was stored, perhaps by another process."""
        if task_id in self._handles:
            return self._handles[task_id]
        task = await self.get_task(task_id)
        handle = TaskHandle(self, task, on_progress=on_progress)
        handle.assume_created(task)
        self._follow(handle, task)
        return handle

    # Prompts, resources and the rest.

    async def list_prompts(self, timeout: float | None = None) -> list[Listed]:
        return [Listed.from_wire(raw) async for raw in self._pages("prompts/list", "prompts", timeout)]

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        return await converse(self, "prompts/get", params, self._limit(timeout))

    async def list_resources(self, timeout: float | None = None) -> list[Listed]:
        return [Listed.from_wire(raw) async for raw in self._pages("resources/list", "resources", timeout)]

    async def list_resource_templates(self, timeout: float | None = None) -> list[Listed]:
        pages = self._pages("resources/templates/list", "resourceTemplates", timeout)
        return [Listed.from_wire(raw) async for raw in pages]

    async def read_resource(self, uri: str, timeout: float | None = None) -> dict[str, Any]:
        return await converse(self, "resources/read", {"uri": uri}, self._limit(timeout))

    async def subscribe(self, uri: str, timeout: float | None = None) -> None:
        """Be told when a resource changes (`on("notifications/resources/updated", ...)`)."""
        if self.generation is Generation.STATELESS:
            self._subscriptions.want_resource(uri)
        else:
            await self.request("resources/subscribe", {"uri": uri}, timeout=timeout)

    async def unsubscribe(self, uri: str, timeout: float | None = None) -> None:
        if self.generation is Generation.STATELESS:
            self._subscriptions.drop_resource(uri)
        else:
            await self.request("resources/unsubscribe", {"uri": uri}, timeout=timeout)

    async def watch_lists(self) -> None:
        """Be told when lists of tools, prompts or resources change. Stateful servers tell without being asked."""
        if self.generation is Generation.STATELESS:
            self._subscriptions.want_lists()

    async def complete(
        self,
        ref: Mapping[str, Any],
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Suggestions for an argument of a prompt or a resource template."""
        params: dict[str, Any] = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        result = await self.request("completion/complete", params, timeout=timeout)
        completion = result.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [str(each) for each in values] if isinstance(values, list) else []

    async def ping(self, timeout: float | None = None) -> None:
        """Make sure the server answers. The stateless generation has no ping; discovery serves."""
        method = "ping" if self.generation is Generation.STATEFUL else "server/discover"
        await self.request(method, {}, timeout=timeout)

    async def set_log_level(self, level: str | None, timeout: float | None = None) -> None:
        """Ask for log messages of at least this level (`on("notifications/message", ...)`)."""
        if isinstance(self._dialect, Stateless):
            self._dialect.set_log_level(level)
        elif level is not None:
            await self.request("logging/setLevel", {"level": level}, timeout=timeout)

    async def roots_changed(self) -> None:
        """Tell a stateful server that the roots are others now."""
        if self.generation is Generation.STATEFUL:
            await self._post(encode({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}))

    def on(self, method: str, listener: Listener) -> Callable[[], None]:
        """Call `listener(params)` for each notification `method`; the returned function ends that."""
        return self._inbound.on(method, listener)

    def answer(self, key: str, answer: Mapping[str, Any]) -> bool:
        """Answer a parked question that belongs to no task; False if no question waits under this key."""
        return self.answering.give(key, answer)

    # The way every request goes.

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        tool: Tool | None = None,
        long: bool = False,
    ) -> dict[str, Any]:
        """Send any request and return its result. Everything above ends up here."""
        params = params or {}
        limit, dialect = self._limit(timeout), self._dialect
        try:
            message = await self._exchange(method, params, tool, limit, long)
        except SessionExpired:
            await self._renew(dialect)  # 404 proves that the request was not executed
            message = await self._exchange(method, params, tool, limit, long)
        except ConnectionLost:
            if method == "tools/call" or long:
                raise
            message = await self._exchange(method, params, tool, limit, long)
        return _result_of(message)

    async def _exchange(
        self, method: str, params: dict[str, Any], tool: Tool | None, timeout: float, long: bool
    ) -> Message:
        request_id = next(self._ids)
        outgoing = self._dialect.frame(request_id, method, params, tool, long=long)
        try:
            return await self._carrier.exchange(outgoing, timeout)
        except (asyncio.CancelledError, DeadlineExceeded):
            if not self._carrier.closing_cancels and "task" not in params:
                self._inbound.spawn(self._withdraw(request_id))
            raise

    async def _withdraw(self, request_id: int) -> None:
        notice = {"requestId": request_id, "reason": "the client gave up waiting"}
        await self._post(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": notice}))

    async def _post(self, body: bytes) -> None:
        await self._carrier.post(body, NOTICE_TIMEOUT)

    async def _renew(self, expired: Dialect) -> None:
        """The server forgot the session: shake hands again, once, however many requests noticed."""
        async with self._renewing:
            if self._dialect is not expired:
                return
            await self._carrier.restart()
            self._dialect = await shake_hands(self._carrier, self.options, self.options.connect_timeout)
            self._tools = None
            if isinstance(self._carrier, StreamableHttp):
                await self._carrier.open_listener()

    async def _pages(self, method: str, key: str, timeout: float | None) -> AsyncIterator[Any]:
        cursor: Any = None
        seen: set[str] = set()
        for _ in range(self.options.max_pages):
            result = await self.request(method, {} if cursor is None else {"cursor": cursor}, timeout=timeout)
            entries = result.get(key)
            if not isinstance(entries, list):
                raise InvalidReply(f"the server's answer to {method} has no list of {key}")
            for entry in entries:
                yield entry
            cursor = result.get("nextCursor")
            if cursor is None:
                return
            if str(cursor) in seen:
                raise InvalidReply(f"the server's pages of {method} go round in circles")
            seen.add(str(cursor))
        raise InvalidReply(f"{method} has more than {self.options.max_pages} pages")

    # Calls and their tasks.

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        timeout: float,
        on_progress: OnProgress | None,
        meta: Mapping[str, Any] | None,
        augment: dict[str, Any] | None,
        *,
        as_task: bool = False,
    ) -> ToolResult | TaskHandle:
        params: dict[str, Any] = {"name": name, "arguments": arguments if arguments is not None else {}}
        if meta:
            params["_meta"] = dict(meta)
        if augment is not None:
            params["task"] = augment
        token = self._expect_progress(params, on_progress) if on_progress is not None or as_task else None
        handle: TaskHandle | None = None
        try:
            result = await self._call_with_headers(name, params, timeout)
            task = self._dialect.created_task(result) if "content" not in result else None
            if task is None:
                return ToolResult(result)
            handle = TaskHandle(self, task, token=token, on_progress=on_progress)
            handle.read_immediate_response(result)
            if token is not None:
                self._progress[token] = handle.report
            self._follow(handle, task)
            return handle
        finally:
            if token is not None and handle is None:
                self._progress.pop(token, None)

    async def _call_with_headers(self, name: str, params: dict[str, Any], timeout: float) -> dict[str, Any]:
        tool = self._tools.get(name) if self._tools is not None else None
        try:
            return await converse(self, "tools/call", params, timeout, tool)
        except ServerError as error:
            if error.code != HEADER_MISMATCH or self.generation is Generation.STATEFUL:
                raise
        # The tool's headers are not what we thought: read its schema again. The server refused before it ran anything.
        self._tools = None
        return await converse(self, "tools/call", params, timeout, await self._find_tool(name))

    def _follow(self, handle: TaskHandle, task: Task) -> None:
        if task.task_id in self._handles:
            raise InvalidReply(f"the server used the task id {task.task_id} twice")
        self._handles[task.task_id] = handle
        self._poller.watch(handle, next_delay(task.poll_interval, self.options.default_poll_interval))
        handle.observe(task)

    async def _find_tool(self, name: str) -> Tool | None:
        if self._tools is None:
            try:
                await self.list_tools()
            except ServerError:
                self._tools = {}  # a server need not list what it answers
        return (self._tools or {}).get(name)

    # What task handles ask of their session.

    async def read_task(self, task_id: str, timeout: float | None = None) -> Task:
        task = self._dialect.task(await self.request("tasks/get", {"taskId": task_id}, timeout=timeout))
        if task.task_id != task_id:
            raise InvalidReply(f"the server answered about task {task.task_id} when asked about {task_id}")
        return task

    async def fetch_result(self, task_id: str, timeout: float, *, long: bool = False) -> dict[str, Any]:
        return await self.request("tasks/result", {"taskId": task_id}, timeout=timeout, long=long)

    async def update_task(self, task_id: str, answers: Mapping[str, Any]) -> None:
        await self.request("tasks/update", {"taskId": task_id, "inputResponses": dict(answers)})

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._inbound.spawn(work)

    def hurry(self, handle: TaskHandle) -> None:
        """Look at this task now rather than at its next turn."""
        if handle.task_id in self._handles:
            self._poller.watch(handle, 0.0)

    def forget(self, handle: TaskHandle) -> None:
        """The task's result is in the program's hands: nothing about it is kept here."""
        self._poller.forget(handle)
        if handle.task_id is not None:
            self._handles.pop(handle.task_id, None)
            self._subscriptions.drop_task(handle.task_id)

    def task_ended(self, handle: TaskHandle, token: str | None) -> None:
        if token is not None:
            self._progress.pop(token, None)
        if handle.has_outcome:
            self.forget(handle)
        else:
            self._poller.watch(handle, 0.0)  # its turns now only watch over its expiry

    def warn(self, update: TaskUpdate) -> None:
        if self.options.on_expiry is not None:
            self.options.on_expiry(update)

    def long_lived(self, handle: TaskHandle) -> None:
        """This task takes a while: ask a stateless server to push its changes."""
        if self.generation is Generation.STATELESS and handle.task_id is not None and self._dialect.runs_tasks():
            self._subscriptions.want_task(handle.task_id)

    # What the server tells.

    def _listen_to_server(self) -> None:
        self.on("notifications/progress", self._on_progress)
        self.on("notifications/tasks/status", self._on_task)
        self.on("notifications/tasks", self._on_task)
        self.on("notifications/tools/list_changed", self._on_tools_changed)

    def _on_progress(self, params: Mapping[str, Any]) -> None:
        report = self._progress.get(str(params.get("progressToken")))
        progress, total, message = params.get("progress"), params.get("total"), params.get("message")
        if report is not None and isinstance(progress, int | float):
            report(
                Progress(
                    progress,
                    total if isinstance(total, int | float) else None,
                    message if isinstance(message, str) else None,
                )
            )

    def _on_task(self, params: Mapping[str, Any]) -> None:
        handle = self._handles.get(str(params.get("taskId")))
        if handle is None:
            return
        try:
            task = self._dialect.task(params)
        except InvalidReply:
            self.hurry(handle)
            return
        if (
            task.status.is_terminal
            and self.generation is Generation.STATELESS
            and task.result is None
            and task.error is None
        ):
            self.hurry(handle)  # the result comes with tasks/get
        else:
            handle.observe(task, pushed=True)

    def _on_tools_changed(self, params: Mapping[str, Any]) -> None:
        self._tools = None

    def _on_parked(self, question: Question) -> None:
        handle = self._handles.get(question.task_id or "")
        if handle is not None:
            handle.parked()

    def _expect_progress(self, params: dict[str, Any], on_progress: OnProgress | None) -> str:
        token = f"tg-{next(self._ids)}"
        params["_meta"] = {**params.get("_meta", {}), "progressToken": token}
        self._progress[token] = on_progress or (lambda progress: None)
        return token

    async def _listen(self, params: dict[str, Any], timeout: float) -> None:
        await self.request("subscriptions/listen", params, timeout=timeout, long=True)

    def _limit(self, timeout: float | None) -> float:
        return self.options.request_timeout if timeout is None else timeout

    # Opening and closing, by `connect`.

    def deliver(self, message: Message) -> None:
        self._inbound.deliver(message)

    async def begin(self, carrier: Carrier, dialect: Dialect) -> None:
        self._carrier, self._dialect = carrier, dialect
        if dialect.generation is Generation.STATEFUL and isinstance(carrier, StreamableHttp):
            await carrier.open_listener()

    async def close(self) -> None:
        for handle in list(self._handles.values()):
            handle.abandon()
        await self._subscriptions.close()
        await self._poller.close()
        await self._inbound.close()


def _usable(tool: Tool) -> bool:
    """A tool whose `x-mcp-header` breaks the rules must not be used (2026-07-28, transports, custom headers)."""
    try:
        param_headers(tool.input_schema)
    except InvalidParamHeader:
        return False
    return True


def _result_of(message: Message) -> dict[str, Any]:
    error = message.get("error")
    if error is not None:
        if not isinstance(error, dict):
            raise InvalidReply("the server's error is not an object")
        code = error.get("code")
        raise ServerError(code if isinstance(code, int) else 0, str(error.get("message", "")), error.get("data"))
    result = message.get("result")
    if not isinstance(result, dict):
        raise InvalidReply("the server's result is not an object")
    return result


__all__ = ["ClientError", "Session"]
