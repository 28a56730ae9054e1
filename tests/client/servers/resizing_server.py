"""A stdio MCP server with one tool, `resize`, that writes every execution to a ledger before it does anything.

Run as a program: `resizing_server.py LEDGER`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

LEDGER = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
SCHEMA = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}


async def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "images", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "resize", "inputSchema": SCHEMA}]}
    if method == "tools/call":
        file = params["arguments"]["file"]
        os.write(LEDGER, f"{file}\n".encode())
        os.fsync(LEDGER)
        await asyncio.sleep(0.3)
        return {"content": [{"type": "text", "text": f"{file} is 640 pixels wide"}]}
    return {}


async def handle(message: dict[str, Any]) -> None:
    result = await answer(message["method"], message.get("params", {}))
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
    sys.stdout.flush()


async def main() -> None:
    running = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        message = json.loads(line)
        if "id" in message and "method" in message:
            task = asyncio.create_task(handle(message))
            running.add(task)
            task.add_done_callback(running.discard)


asyncio.run(main())
