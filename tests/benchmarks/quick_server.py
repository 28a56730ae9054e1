"""A server that costs almost nothing, for measuring clients: `echo`, and tasks that work for ever. Both generations.

quick_server.py PORT
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

import httptools

ENVELOPE = "io.modelcontextprotocol/protocolVersion"
numbers = itertools.count(1)
WHEN = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "status": "working"}


def describe(task_id: str, stateless: bool) -> dict[str, Any]:
    ttl, interval = ("ttlMs", "pollIntervalMs") if stateless else ("ttl", "pollInterval")
    return {"taskId": task_id, **WHEN, ttl: None, interval: 5000}


def answer(method: str, params: dict[str, Any], stateless: bool) -> dict[str, Any] | None:
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
        capabilities = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
        info = {"name": "quick", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    if method == "server/discover":
        extensions = {"io.modelcontextprotocol/tasks": {}}
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "extensions": extensions}}
    return None


class Connection(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if self.parser.get_method() != b"POST":
            self.transport.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            return
        message = json.loads(body)
        if "id" not in message:
            self.transport.write(b"HTTP/1.1 202 Yes\r\ncontent-length: 0\r\n\r\n")
            return
        params = message.get("params") or {}
        stateless = ENVELOPE in (params.get("_meta") or {})
        result = answer(message["method"], params, stateless)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "no such method"}
        else:
            reply["result"] = {"resultType": "complete", **result} if stateless else result
        out = json.dumps(reply).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(out)
        self.transport.write(head + out)


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
