"""The valid messages that the fuzzer corrupts: requests of callers, and replies of upstreams."""

from __future__ import annotations

from typing import Any

Wire = dict[str, Any]
ENVELOPE: Wire = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
}
INFO = {"name": "fuzz", "version": "1"}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOL = {"name": "echo", "description": "echo a text", "inputSchema": SCHEMA}


def request(method: str, stateless: bool = False, **params: Any) -> Wire:
    inner = {**params, "_meta": ENVELOPE} if stateless else params
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": inner}


def echo(text: str, stateless: bool = False, tool: str = "good__echo") -> Wire:
    return request("tools/call", stateless, name=tool, arguments={"text": text})


HELLO: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": INFO}
BOTH: list[Wire] = [
    echo("hi"),
    request("tools/list"),
    request("resources/list"),
    request("resources/templates/list"),
    request("prompts/list"),
    request("resources/read", uri="memo://x"),
    request("prompts/get", name="x", arguments={"a": "b"}),
    request("completion/complete", ref={"type": "ref/prompt", "name": "x"}, argument={"name": "a", "value": ""}),
    request("tasks/get", taskId="none"),
    request("tasks/cancel", taskId="none"),
]
CALLER_FRAMES: list[Wire] = [
    *BOTH,
    *({**one, "params": {**one["params"], "_meta": ENVELOPE}} for one in BOTH),
    request("initialize", **HELLO),
    request("ping"),
    request("logging/setLevel", level="info"),
    request("resources/subscribe", uri="memo://x"),
    request("tasks/list"),
    request("tasks/result", taskId="none"),
    {**echo("as a task"), "params": {"name": "good__echo", "arguments": {"text": "t"}, "task": {"ttl": 1000}}},
    request("server/discover", stateless=True),
    request("tasks/update", stateless=True, taskId="none", inputResponses={}),
    request("tools/call", True, name="good__echo", inputResponses={"a": {}}, requestState="x.y"),
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "no"}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
    {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept", "content": {"answer": "yes"}}},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "no"}},
]
QUESTION = {"message": "Well?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
ASKED = {"a": {"method": "elicitation/create", "params": QUESTION}}
NOON = "2026-01-01T12:00:00Z"
TASK = {"taskId": "t", "status": "working", "createdAt": NOON, "lastUpdatedAt": NOON, "ttl": None}


def answer(**result: Any) -> Wire:
    return {"jsonrpc": "2.0", "id": 1, "result": result}


def notice(method: str, **params: Any) -> Wire:
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


UPSTREAM_FRAMES: list[Wire] = [
    answer(content=[{"type": "text", "text": "hi"}], isError=False),
    answer(content=[], structuredContent={"a": 1}, resultType="complete"),
    answer(resultType="input_required", inputRequests=ASKED),
    answer(task=TASK),
    answer(tools=[TOOL]),
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "no", "data": {"a": [1]}}},
    notice("progress", progressToken="t", progress=1, total=2),
    notice("message", level="info", data="x"),
    notice("resources/updated", uri="memo://x"),
    notice("tools/list_changed"),
    {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": QUESTION},
    {"jsonrpc": "2.0", "id": 8, "method": "ping"},
    {"jsonrpc": "2.0", "id": 9, "method": "roots/list"},
    {"jsonrpc": "2.0", "id": 10, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}},
]
