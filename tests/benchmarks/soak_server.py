"""The servers behind `soak`: a quick tool, one that returns its argument, and a slow one; or, of the stateless generation, one that
asks its caller.

python -m tests.benchmarks.soak_server PORT [stateless]
"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from tests.benchmarks.one_reply_server import Later, Result, serve

SLOW_S = 1.0
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("quick", "repeat", "slow", "hold")]
ASKING = [{"name": "ask", "inputSchema": {"type": "object"}}]
QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which one?",
        "requestedSchema": {"type": "object", "properties": {"value": {"type": "string"}}},
    },
}


def text(content: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}]}


def answer(message: dict[str, Any]) -> Result:
    method = message["method"]
    if method == "tools/call":
        name = message["params"]["name"]
        if name == "slow":
            raise Later(SLOW_S, text("slow"))
        return text(message["params"]["arguments"]["note"] if name == "repeat" else "quick")
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "initialize":
        info = {"name": "soak", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    return None


def answer_stateless(message: dict[str, Any]) -> Result:
    method = message["method"]
    if method == "tools/call":
        if "inputResponses" in message["params"]:
            return {"resultType": "complete", **text("asked")}
        return {"resultType": "input_required", "inputRequests": {"which": QUESTION}, "requestState": "once"}
    if method == "tools/list":
        return {"resultType": "complete", "tools": ASKING, "ttlMs": 60_000, "cacheScope": "public"}
    if method == "server/discover":
        return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    return None


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), answer_stateless if "stateless" in sys.argv else answer))
