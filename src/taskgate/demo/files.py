"""The bundled demo server: a few files in memory, a slow report, and a tool that asks a question.

It implements MCP 2025-11-25 over stdin and stdout without an SDK, so that the messages are easy to read. Run it with
`python -m taskgate.demo.files`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

FILES = {"readme.txt": "Welcome to Taskgate.", "notes.txt": "Buy milk.", "old.log": "Nothing happened."}


def _tool(name: str, text: str, properties: dict[str, Any], **hints: bool) -> dict[str, Any]:
    required = [key for key, schema in properties.items() if "default" not in schema]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": text, "inputSchema": schema, "annotations": hints}


_NAME = {"type": "string", "description": "Name of the file."}
TOOLS = [
    _tool("list_files", "List the files.", {}, readOnlyHint=True),
    _tool("read_file", "Read one file.", {"name": _NAME}, readOnlyHint=True),
    _tool("write_file", "Write one file.", {"name": _NAME, "text": {"type": "string"}}, idempotentHint=True),
    _tool("delete_file", "Delete one file for good.", {"name": _NAME}, destructiveHint=True),
    _tool(
        "slow_report",
        "Count all words, slowly, with progress.",
        {"seconds": {"type": "number", "default": 5, "description": "How long it should take."}},
        readOnlyHint=True,
    ),
    _tool("greet", "Ask for your name, then greet you.", {}),
]


class DemoServer:
    """Reads requests from stdin and writes responses to stdout."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._running: dict[Any, asyncio.Task[None]] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=4 * 1024 * 1024)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            with contextlib.suppress(json.JSONDecodeError):
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            waiting = self._pending.pop(message.get("id", 0), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.get("result") or {"action": "cancel"})
        elif "id" in message:
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._running[message["id"]] = task
            task.add_done_callback(lambda _: self._running.pop(message["id"], None))
        elif message["method"] == "notifications/cancelled":
            running = self._running.get((message.get("params") or {}).get("requestId"))
            if running is not None:
                running.cancel()

    async def _answer(self, message: dict[str, Any]) -> None:
        params = message.get("params") or {}
        methods: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "initialize": self._initialize,
            "ping": _nothing,
            "tools/list": _list_tools,
            "tools/call": self._call,
        }
        method = methods.get(message["method"])
        if method is None:
            error = {"code": -32601, "message": "Method not found"}
            self._send({"jsonrpc": "2.0", "id": message["id"], "error": error})
            return
        self._send({"jsonrpc": "2.0", "id": message["id"], "result": await method(params)})

    async def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocolVersion": params.get("protocolVersion", "2025-11-25"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "taskgate-demo", "version": "1"},
        }

    async def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        arguments = params.get("arguments") or {}
        token = (params.get("_meta") or {}).get("progressToken")
        try:
            match params.get("name"):
                case "list_files":
                    return _text("\n".join(sorted(self.files)))
                case "read_file":
                    return _text(self.files[arguments["name"]])
                case "write_file":
                    self.files[arguments["name"]] = arguments["text"]
                    return _text(f"Wrote {arguments['name']}.")
                case "delete_file":
                    del self.files[arguments["name"]]
                    return _text(f"Deleted {arguments['name']}.")
                case "slow_report":
                    return await self._report(float(arguments.get("seconds", 5)), token)
                case "greet":
                    return await self._greet()
                case name:
                    return _text(f"There is no tool {name!r}.", is_error=True)
        except KeyError as missing:
            return _text(f"There is no {missing}.", is_error=True)

    async def _report(self, seconds: float, token: Any) -> dict[str, Any]:
        words = 0
        steps = max(1, len(self.files))
        for done, text in enumerate(list(self.files.values()), start=1):
            await asyncio.sleep(seconds / steps)
            words += len(text.split())
            if token is not None:
                progress = {
                    "progressToken": token,
                    "progress": done,
                    "total": steps,
                    "message": f"{words} words so far",
                }
                self._send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        return _text(f"{words} words in {len(self.files)} files.")

    async def _greet(self) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {"name": {"type": "string", "title": "Your name"}},
            "required": ["name"],
        }
        answer = await self._ask("elicitation/create", {"message": "What is your name?", "requestedSchema": schema})
        if answer.get("action") != "accept":
            return _text("No name given. Hello anyway!")
        return _text(f"Hello, {answer['content']['name']}!")

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        result: dict[str, Any] = await answer
        return result

    def _send(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


async def _nothing(_params: dict[str, Any]) -> dict[str, Any]:
    return {}


async def _list_tools(_params: dict[str, Any]) -> dict[str, Any]:
    return {"tools": TOOLS}


def _text(text: str, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


if __name__ == "__main__":
    asyncio.run(DemoServer().run())
