"""The server behind `soak`: a quick tool, and one that returns its argument.

python -m tests.benchmarks.soak_server PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from tests.benchmarks.one_reply_server import Result, serve

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("quick", "repeat")]


def answer(message: dict[str, Any]) -> Result:
    method = message["method"]
    if method == "tools/call":
        repeated = message["params"]["name"] == "repeat"
        return {"content": [{"type": "text", "text": message["params"]["arguments"]["note"] if repeated else "quick"}]}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "initialize":
        info = {"name": "soak", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    return None


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), answer))
