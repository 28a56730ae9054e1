"""The stateful generation, MCP 2025-11-25 and older: a handshake, a session, and tasks in the core protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.client.dialect import member, stateful_capabilities
from taskgate.client.errors import InvalidReply, ServerError, VersionUnsupported
from taskgate.client.messages import encode
from taskgate.client.options import Generation, Options
from taskgate.client.results import Task, Tool
from taskgate.client.transport import Outgoing, Transport

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
TASK_VERSIONS = ("2025-11-25",)


class Stateful:
    """The dialect of one stateful revision, negotiated with one server."""

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
        return Outgoing(id=request_id, method=method, body=encode(message), headers=(), long=long)

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


async def initialize_session(transport: Transport, options: Options, timeout: float) -> Stateful:
    """Send `initialize` and `notifications/initialized`. Raises ClientError."""
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
        raise InvalidReply("the result of initialize has no protocol version")
    if result["protocolVersion"] not in VERSIONS:
        raise VersionUnsupported(f"the server uses MCP {result['protocolVersion']}, which this client does not support")
    dialect = Stateful(result)
    transport.settle(dialect.version, stateful=True)
    await transport.post(encode({"jsonrpc": "2.0", "method": "notifications/initialized"}), timeout)
    return dialect
