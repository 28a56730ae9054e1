"""The stateless generation, MCP 2026-07-28: no handshake.

Each request carries an envelope in `_meta`; over HTTP, headers repeat part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.client.dialect import TASKS_EXTENSION, member, stateless_capabilities
from taskgate.client.errors import InvalidReply, ServerError
from taskgate.client.messages import encode
from taskgate.client.options import Generation, Options
from taskgate.client.results import Task, Tool
from taskgate.client.transport import Header, Outgoing, Transport
from taskgate.mcp.param_headers import InvalidParamHeader, encode_header_value, header_values, param_headers_of

VERSION = "2026-07-28"
_PREFIX = "io.modelcontextprotocol/"
GATEWAY = "taskgate"
"""The `serverInfo.name` of a Taskgate gateway."""
CLIENT_NAME = "taskgate/client"
"""`_meta` key with the name of a stateless client that has no token."""
HEADER_MISMATCH, CAPABILITY_MISSING, VERSION_UNSUPPORTED = -32020, -32021, -32022
# The parameter that the Mcp-Name header repeats.
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


class Stateless:
    """The dialect of the stateless revision."""

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
        """Send a client name to a Taskgate gateway, which otherwise provides no inbox to a client without a token."""
        self._envelope.setdefault(CLIENT_NAME, name)

    def set_log_level(self, level: str | None) -> None:
        """Request log messages of at least this level with every request."""
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
        return Outgoing(id=request_id, method=method, body=body, headers=headers, long=long)

    def runs_tasks(self) -> bool:
        return member(self.capabilities, "extensions", TASKS_EXTENSION) is not None

    def created_task(self, result: dict[str, Any]) -> Task | None:
        return self.task(result) if result.get("resultType") == "task" else None

    def task(self, result: Any) -> Task:
        return Task.from_wire(result, "ttlMs", "pollIntervalMs")


async def discover(transport: Transport, options: Options, timeout: float) -> Stateless | None:
    """Send `server/discover`. Returns None if the server does not support this revision. Raises ClientError."""
    transport.settle(VERSION, stateful=False)
    reply = await transport.exchange(Stateless(options).frame("discover", "server/discover", {}), timeout)
    if VERSION in _versions_offered(reply.get("error")):
        # The server refused the revision, but lists it as supported: retry once.
        reply = await transport.exchange(Stateless(options).frame("discover-again", "server/discover", {}), timeout)
    error, result = reply.get("error"), reply.get("result")
    if isinstance(error, dict):
        raise ServerError(_code(error), str(error.get("message")), error.get("data"))
    if not isinstance(result, dict):
        raise InvalidReply("the reply to server/discover is not a result")
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
