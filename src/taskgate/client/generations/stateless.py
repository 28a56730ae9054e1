"""MCP 2026-07-28: no handshake; each request carries an envelope, and over HTTP also headers that repeat part of it.

Frames requests for the stateless generation, asks a server whether it speaks it, and reads the tasks extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.client.errors import InvalidReply, ServerError
from taskgate.client.generations.declare import TASKS_EXTENSION, stateless_capabilities
from taskgate.client.generations.dialect import member
from taskgate.client.generations.param_headers import InvalidParamHeader, header_lines, header_value, param_headers
from taskgate.client.options import Generation, Options
from taskgate.client.results import Task, Tool
from taskgate.client.transport.carrier import Carrier, Outgoing
from taskgate.client.wire import encode

VERSION = "2026-07-28"
_PREFIX = "io.modelcontextprotocol/"
SUBSCRIPTION_ID = _PREFIX + "subscriptionId"
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
        lines = f"mcp-method: {method}\r\n"
        if (named_by := _NAMED_BY.get(method)) is not None:
            lines += f"mcp-name: {header_value(params.get(named_by))}\r\n"
        if tool is not None:
            lines += _param_lines(tool, params)
        return Outgoing(request_id, method, body, lines.encode("ascii"), long)

    def runs_tasks(self) -> bool:
        return member(self.capabilities, "extensions", TASKS_EXTENSION) is not None

    def created_task(self, result: dict[str, Any]) -> Task | None:
        return self.task(result) if result.get("resultType") == "task" else None

    def task(self, result: Any) -> Task:
        return Task.from_wire(result, "ttlMs", "pollIntervalMs")


async def discover(carrier: Carrier, options: Options, timeout: float) -> Stateless | None:
    """Ask whether the server speaks this generation; None means no."""
    carrier.settle(VERSION, stateful=False)
    reply = await carrier.exchange(Stateless(options).frame("discover", "server/discover", {}), timeout)
    if VERSION in _versions_offered(reply.get("error")):
        # It refused the revision and names the same one as supported: worth exactly one more try.
        reply = await carrier.exchange(Stateless(options).frame("discover-again", "server/discover", {}), timeout)
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


def _param_lines(tool: Tool, params: Mapping[str, Any]) -> str:
    try:
        headers = param_headers(tool.input_schema)
    except InvalidParamHeader:
        return ""
    arguments = params.get("arguments")
    return header_lines(headers, arguments) if headers and isinstance(arguments, Mapping) else ""
