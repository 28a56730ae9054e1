"""An MCP server with a given number of tools, for measuring how the gateway grows. Both generations; one page of tools.

python -m tests.benchmarks.growing_server PORT TOOLS
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tests.benchmarks.one_reply_server import Result, serve

ENVELOPE = "io.modelcontextprotocol/protocolVersion"
TEXT = {"type": "string", "description": "The text to work with"}
OPTIONS = {"type": "object", "properties": {"quick": {"type": "boolean"}, "tags": {"type": "array", "items": TEXT}}}
SCHEMA = {"type": "object", "properties": {"text": TEXT, "options": OPTIONS}, "required": ["text"]}


def tool(number: int) -> dict[str, Any]:
    described = f"Gets record number {number} from the archive and returns it as text, with its title."
    return {"name": f"get_{number}", "title": f"Get {number}", "description": described, "inputSchema": SCHEMA}


def answer(message: dict[str, Any], tools: list[dict[str, Any]]) -> Result:
    params = message.get("params") or {}
    result: dict[str, Any]
    match message["method"]:
        case "tools/call":
            result = {"content": [{"type": "text", "text": params["arguments"]["text"]}], "isError": False}
        case "tools/list":
            result = {"tools": tools}
        case "initialize":
            info = {"name": "growing", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case _:
            return None
    return {"resultType": "complete", **result} if ENVELOPE in (params.get("_meta") or {}) else result


if __name__ == "__main__":
    offered = [tool(number) for number in range(int(sys.argv[2]))]
    asyncio.run(serve(int(sys.argv[1]), lambda message: answer(message, offered)))
