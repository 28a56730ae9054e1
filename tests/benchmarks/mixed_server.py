"""The server behind `mixed`: one quick tool, one with many words to complete, and one that never answers.

python -m tests.benchmarks.mixed_server PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from tests.benchmarks.one_reply_server import NoReply, Result, serve

WORDS = {"type": "object", "properties": {"word": {"type": "string", "enum": [f"word{n}" for n in range(2_000)]}}}
ANY = {"type": "object"}
TOOLS = [
    {"name": "quick", "inputSchema": ANY},
    {"name": "repeat", "inputSchema": ANY},
    {"name": "words", "inputSchema": WORDS},
    {"name": "wait_in_line", "inputSchema": ANY},
]


def answer(message: dict[str, Any]) -> Result:
    method = message["method"]
    if method == "tools/call":
        if message["params"].get("name") == "wait_in_line":
            raise NoReply
        return {"content": [{"type": "text", "text": "quick"}]}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "initialize":
        info = {"name": "mixed", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    return None


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), answer))
