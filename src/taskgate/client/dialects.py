"""How each generation of MCP spells what the session asks: how a request is framed, how a task looks, what we declare.

The session speaks of calls, tasks and questions; a dialect turns them into one generation's messages and back. *Stateful* is
MCP 2025-11-25 and older: a handshake, a session, tasks in the core protocol. *Stateless* is MCP 2026-07-28: no handshake; each
request carries an envelope, and over HTTP also headers that repeat part of it. A capability is declared exactly when something
answers for it: a callback, a list of roots, or the promise to answer by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from taskgate.client.errors import InvalidReply, ServerError, VersionUnsupported
from taskgate.client.results import Generation, Options, Task, Tool
from taskgate.client.transport import Header, Outgoing, Transport, encode
from taskgate.mcp.param_headers import InvalidParamHeader, encode_header_value, header_values, param_headers_of


class Dialect(Protocol):
    """One generation, agreed with one server."""

    generation: Generation
    version: str
    capabilities: Mapping[str, Any]
    server_info: Mapping[str, Any]
    instructions: str | None

    def frame(
        self,
        request_id: int | str,
        method: str,
        params: dict[str, Any],
        tool: Tool | None = None,
        *,
        long: bool = False,
    ) -> Outgoing:
        """The request as it goes out. `params` may be changed."""
        ...

    def runs_tasks(self) -> bool:
        """Whether the server said that it runs tool calls as tasks."""
        ...

    def created_task(self, result: dict[str, Any]) -> Task | None:
        """The task, if this result of a tool call is one."""
        ...

    def task(self, result: Any) -> Task:
        """The task in a reply or a notification about it."""
        ...


def member(tree: Mapping[str, Any], *path: str) -> Any:
    """The value at a path of nested objects, or None where the path ends early."""
    value: Any = tree
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


TASKS_EXTENSION = "io.modelcontextprotocol/tasks"


def stateful_capabilities(options: Options) -> dict[str, Any]:
    """For `initialize`. `tasks.requests.tools` goes beyond MCP's own shape (a client receives no tool calls) but some
    servers look for it, and every known server tolerates it."""
    declared = _shared(options)
    if "roots" in declared:
        declared["roots"] = {"listChanged": True}
    if options.tasks:
        requests: dict[str, Any] = {"tools": {"call": {}}}
        if "sampling" in declared:
            requests["sampling"] = {"createMessage": {}}
        if "elicitation" in declared:
            requests["elicitation"] = {"create": {}}
        declared["tasks"] = {"list": {}, "cancel": {}, "requests": requests}
    return declared


def stateless_capabilities(options: Options) -> dict[str, Any]:
    """For the envelope of each request."""
    declared = _shared(options)
    if options.tasks:
        declared["extensions"] = {TASKS_EXTENSION: {}}
    return declared


def _shared(options: Options) -> dict[str, Any]:
    declared: dict[str, Any] = {}
    if options.elicitation is not None or options.answer_by_hand:
        declared["elicitation"] = {"form": {}, "url": {}}
    if options.sampling is not None:
        declared["sampling"] = {"tools": {}} if options.sampling_tools else {}
    if options.roots is not None:
        declared["roots"] = {}
    return declared


VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
TASK_VERSIONS = ("2025-11-25",)


class Stateful:
    """A dialect: one stateful revision, agreed with one server."""

    generation = Generation.STATEFUL

    def __init__(self, initialized: Mapping[str, Any]) -> None:
        self.initialized = initialized
        self.version = str(initialized["protocolVersion"])
        capabilities, info = initialized.get("capabilities"), initialized.get("serverInfo")
        self.capabilities: Mapping[str, Any] = capabilities if isinstance(capabilities, dict) else {}
        self.server_info: Mapping[str, Any] = info if isinstance(info, dict) else {}
        instructions = initialized.get("instructions")
        self.instructions = instructions if isinstance(instructions, str) else None

    def frame(
        self,
        request_id: int | str,
        method: str,
        params: dict[str, Any],
        tool: Tool | None = None,
        *,
        long: bool = False,
    ) -> Outgoing:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
        if params:
            message["params"] = params
        return Outgoing(request_id, method, encode(message), (), long)

    def runs_tasks(self) -> bool:
        requests = member(self.capabilities, "tasks", "requests")
        declared = member(requests or {}, "tools", "call") is not None or member(requests or {}, "tools/call") is True
        return declared and self.version in TASK_VERSIONS

    def created_task(self, result: dict[str, Any]) -> Task | None:
        task = result.get("task")
        if isinstance(task, dict) and "taskId" in task:
            return self.task(task)
        if isinstance(result.get("taskId"), str) and "status" in result and "content" not in result:
            return self.task(result)
        return None

    def task(self, result: Any) -> Task:
        return Task.from_wire(result, "ttl", "pollInterval")


async def shake_hands(transport: Transport, options: Options, timeout: float) -> Stateful:
    """`initialize` and `notifications/initialized`."""
    params = {
        "protocolVersion": VERSIONS[0],
        "capabilities": stateful_capabilities(options),
        "clientInfo": {"name": options.client_name, "version": options.client_version},
    }
    if options.meta:
        params["_meta"] = dict(options.meta)
    body = encode({"jsonrpc": "2.0", "id": "initialize", "method": "initialize", "params": params})
    reply = await transport.exchange(Outgoing("initialize", "initialize", body), timeout)
    error, result = reply.get("error"), reply.get("result")
    if isinstance(error, dict):
        code = error.get("code")
        raise ServerError(code if isinstance(code, int) else 0, str(error.get("message")), error.get("data"))
    if not isinstance(result, dict) or not isinstance(result.get("protocolVersion"), str):
        raise InvalidReply("the server's answer to initialize names no protocol version")
    if result["protocolVersion"] not in VERSIONS:
        raise VersionUnsupported(f"the server speaks MCP {result['protocolVersion']}, which this client does not")
    dialect = Stateful(result)
    transport.settle(dialect.version, stateful=True)
    await transport.post(encode({"jsonrpc": "2.0", "method": "notifications/initialized"}), timeout)
    return dialect


VERSION = "2026-07-28"
_PREFIX = "io.modelcontextprotocol/"
GATEWAY = "taskgate"
"""The name by which a Taskgate gateway introduces itself."""
CLIENT_NAME = "taskgate/client"
"""Where a stateless client without an identity tells a gateway what it calls itself."""
HEADER_MISMATCH, CAPABILITY_MISSING, VERSION_UNSUPPORTED = -32020, -32021, -32022
# Which parameter the Mcp-Name header repeats.
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


class Stateless:
    """A dialect: the stateless revision, spoken with one server."""

    generation = Generation.STATELESS
    version = VERSION

    def __init__(self, options: Options, discovered: Mapping[str, Any] | None = None) -> None:
        discovered = discovered or {}
        capabilities = discovered.get("capabilities")
        self.capabilities: Mapping[str, Any] = capabilities if isinstance(capabilities, dict) else {}
        self.server_info: Mapping[str, Any] = member(discovered, "_meta", _PREFIX + "serverInfo") or {}
        instructions = discovered.get("instructions")
        self.instructions = instructions if isinstance(instructions, str) else None
        self._envelope: dict[str, Any] = {
            **options.meta,
            _PREFIX + "protocolVersion": VERSION,
            _PREFIX + "clientInfo": {"name": options.client_name, "version": options.client_version},
            _PREFIX + "clientCapabilities": stateless_capabilities(options),
        }

    def name_client(self, name: str) -> None:
        """Tell a Taskgate gateway which client this is: without an identity it has no conversation otherwise, and so no inbox."""
        self._envelope.setdefault(CLIENT_NAME, name)

    def set_log_level(self, level: str | None) -> None:
        """From now on ask for log messages of at least this level with every request."""
        self._envelope.pop(_PREFIX + "logLevel", None)
        if level is not None:
            self._envelope[_PREFIX + "logLevel"] = level

    def frame(
        self,
        request_id: int | str,
        method: str,
        params: dict[str, Any],
        tool: Tool | None = None,
        *,
        long: bool = False,
    ) -> Outgoing:
        own = params.get("_meta")
        params["_meta"] = {**self._envelope, **own} if own else self._envelope
        body = encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        headers: tuple[Header, ...] = ((b"mcp-method", method.encode("ascii")),)
        if (named_by := _NAMED_BY.get(method)) is not None:
            name = encode_header_value(str(params.get(named_by)))
            headers = (*headers, (b"mcp-name", name.encode("ascii")))
        if tool is not None:
            headers += _param_headers(tool, params)
        return Outgoing(request_id, method, body, headers, long)

    def runs_tasks(self) -> bool:
        return member(self.capabilities, "extensions", TASKS_EXTENSION) is not None

    def created_task(self, result: dict[str, Any]) -> Task | None:
        return self.task(result) if result.get("resultType") == "task" else None

    def task(self, result: Any) -> Task:
        return Task.from_wire(result, "ttlMs", "pollIntervalMs")


async def discover(transport: Transport, options: Options, timeout: float) -> Stateless | None:
    """Ask whether the server speaks this generation; None means no."""
    transport.settle(VERSION, stateful=False)
    reply = await transport.exchange(Stateless(options).frame("discover", "server/discover", {}), timeout)
    if VERSION in _versions_offered(reply.get("error")):
        # It refused the revision and names the same one as supported: worth exactly one more try.
        reply = await transport.exchange(Stateless(options).frame("discover-again", "server/discover", {}), timeout)
    error, result = reply.get("error"), reply.get("result")
    if isinstance(error, dict):
        raise ServerError(_code(error), str(error.get("message")), error.get("data"))
    if not isinstance(result, dict):
        raise InvalidReply("the server's answer to server/discover is no result")
    versions = result.get("supportedVersions")
    return Stateless(options, result) if isinstance(versions, list) and VERSION in versions else None


def _versions_offered(error: Any) -> list[Any]:
    offered = member(error, "data", "supported") if isinstance(error, dict) else None
    return (
        offered if isinstance(error, dict) and _code(error) == VERSION_UNSUPPORTED and isinstance(offered, list) else []
    )


def _code(error: Mapping[str, Any]) -> int:
    code = error.get("code")
    return code if isinstance(code, int) else 0


def _param_headers(tool: Tool, params: Mapping[str, Any]) -> tuple[Header, ...]:
    arguments = params.get("arguments")
    try:
        annotated = param_headers_of(tool.input_schema)
    except InvalidParamHeader:
        return ()
    if not annotated or not isinstance(arguments, Mapping):
        return ()
    return tuple((name.encode(), value.encode()) for name, value in header_values(annotated, arguments).items())
