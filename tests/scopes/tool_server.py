"""An upstream with the given tools, over standard input and output: `tool_server.py NAME TOOL ...`.

Every tool returns the server's name and its own. Some names do more: `slow` takes a while (and may make a
file when it begins), `big` answers at length, `count` returns the number of calls, `touch` creates a file, `mute` never lists,
`library` comes with a resource and a prompt that take their time, too.
Implements MCP 2025-11-25, independently of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

LIBRARY: dict[str, Any] = {"resources": {}, "prompts": {}, "completions": {}}


class ToolServer:
    def __init__(self, name: str, tools: list[str]) -> None:
        self.name, self.tools = name, tools
        self.calls = self.running = self.maximum = 0
        self.order: list[str] = []
        self.answers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        reader = asyncio.StreamReader(limit=8 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if "id" in message and "method" in message:
                task = asyncio.create_task(self.answer(message))
                self.answers.add(task)
                task.add_done_callback(self.answers.discard)

    async def answer(self, message: dict[str, Any]) -> None:
        params = message.get("params") or {}
        match message["method"]:
            case "initialize":
                result: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}, **(LIBRARY if "library" in self.tools else {})},
                    "serverInfo": {"name": self.name, "version": "1"},
                }
            case "tools/list":
                if "mute" in self.tools:
                    return
                result = {"tools": [self.describe(tool) for tool in self.tools]}
            case "tools/call":
                result = await self.call(params["name"], params.get("arguments") or {})
            case "resources/list":
                result = {"resources": [{"uri": "book://one", "name": "one"}]}
            case "prompts/list":
                result = {"prompts": [{"name": "quote", "arguments": [{"name": "word"}]}]}
            case "resources/read":
                result = {"contents": [{"uri": params["uri"], "text": await self.slow({"seconds": 0.1})}]}
            case "prompts/get":
                block = {"type": "text", "text": await self.slow({"seconds": 0.1})}
                result = {"messages": [{"role": "user", "content": block}]}
            case "completion/complete":
                result = {"completion": {"values": [await self.slow({"seconds": 0.1})]}}
            case _:
                result = {}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()

    def describe(self, tool: str) -> dict[str, Any]:
        words = tool.replace("_", " ")
        properties = {"path": {"type": "string", "description": "Where."}, "who": {"type": "string"}}
        return {
            "name": tool,
            "description": f"{words.capitalize()} with {self.name}.",
            "inputSchema": {"type": "object", "properties": properties},
        }

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        text = f"{self.name}:{tool}"
        if tool == "slow":
            text = await self.slow(arguments)
        elif tool == "big":
            text = "é" * int(arguments["characters"])
        elif tool == "count":
            text = json.dumps({"calls": self.calls - 1, "most": self.maximum, "order": self.order})
        elif tool == "touch":
            Path(arguments["path"]).touch()
        return {"content": [{"type": "text", "text": text}], "isError": False}

    async def slow(self, arguments: dict[str, Any]) -> str:
        self.order.append(str(arguments.get("who", "")))
        if "path" in arguments:
            Path(arguments["path"]).touch()
        self.running += 1
        self.maximum = max(self.maximum, self.running)
        try:
            await asyncio.sleep(float(arguments.get("seconds", 0.2)))
        finally:
            self.running -= 1
        return "done"


if __name__ == "__main__":
    asyncio.run(ToolServer(sys.argv[1], sys.argv[2:]).run())
