"""A server with very little CPU time per call, for measuring clients: `echo`, and tasks that never end. Both generations.

python -m tests.benchmarks.quick_server PORT
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from tests.benchmarks.one_reply_server import Result, serve

ENVELOPE = "io.modelcontextprotocol/protocolVersion"
numbers = itertools.count(1)
WHEN = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "status": "working"}


def describe(task_id: str, stateless: bool) -> dict[str, Any]:
    ttl, interval = ("ttlMs", "pollIntervalMs") if stateless else ("ttl", "pollInterval")
    return {"taskId": task_id, **WHEN, ttl: None, interval: 5000}


def answer(method: str, params: dict[str, Any], stateless: bool) -> Result:
    if method == "tools/call" and params["name"] == "work":
        task = describe(f"task-{next(numbers)}", stateless)
        return {**task, "resultType": "task"} if stateless else {"task": task}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": params["arguments"]["text"]}], "isError": False}
    if method == "tasks/get":
        return describe(params["taskId"], stateless)
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "work")]
        return {"tools": tools if stateless else [{**tool, "execution": {"taskSupport": "optional"}} for tool in tools]}
    if method == "initialize":
        capabilities: dict[str, Any] = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
        info = {"name": "quick", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    if method == "server/discover":
        extensions: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "extensions": extensions}}
    return None


def reply(message: dict[str, Any]) -> Result:
    params = message.get("params") or {}
    stateless = ENVELOPE in (params.get("_meta") or {})
    result = answer(message["method"], params, stateless)
    return {"resultType": "complete", **result} if stateless and result is not None else result


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), reply))
