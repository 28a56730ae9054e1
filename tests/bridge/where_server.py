"""A stdio server of the stateful generation that returns its folder, a variable, and its process id."""

from __future__ import annotations

import json
import os
import sys


def answer(method: str) -> dict[str, object] | None:
    if method == "initialize":
        info = {"name": "where", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "where", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        body = {"folder": os.getcwd(), "who": os.environ.get("WHO", ""), "pid": os.getpid(), "home": os.environ["HOME"]}
        return {"content": [{"type": "text", "text": json.dumps(body)}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message.get("method", ""))
    said = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
