"""An MCP server (2025-11-25, stdio) that misbehaves on request: sends many questions or notifications, exits, or stops
reading. Run as a program."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from typing import Any

NAMES = ("ask", "ask_many", "ask_twice", "ask_secret", "sample", "flood", "log", "die", "deaf", "echo")


def form(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


class MisbehavingUpstream:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._hears = asyncio.Event()
        self._hears.set()

    async def run(self) -> None:
        print("odd upstream is up", file=sys.stderr, flush=True)
        reader = asyncio.StreamReader(limit=1 << 24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            await self._hears.wait()
            message = json.loads(line)
            if "method" not in message:
                waiting = self._asked.pop(message["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message.get("result") or {"error": message.get("error")})
            elif "id" in message:
                task = asyncio.create_task(self.answer(message))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    async def ask(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(id=number, method=method, params=params)
        return await answer

    async def elicit(self, message: str, **properties: Any) -> Any:
        return await self.ask("elicitation/create", message=message, requestedSchema=form(**properties))

    async def answer(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            result: Any = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
        elif method == "tools/list":
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
            result = {"tools": [{"name": name, "inputSchema": schema} for name in NAMES]}
        elif method == "tools/call":
            text = await getattr(self, "tool_" + params["name"])(int((params.get("arguments") or {}).get("n", 1)))
            result = {"content": [{"type": "text", "text": text}]}
        elif method in ("ping", "logging/setLevel"):
            result = {}
        else:
            self.send(id=message["id"], error={"code": -32601, "message": "Method not found"})
            return
        self.send(id=message["id"], result=result)

    async def tool_echo(self, n: int) -> str:
        return f"echo {n}"

    async def tool_ask(self, n: int) -> str:
        return json.dumps(await self.elicit(f"question {n}", word={"type": "string"}))

    async def tool_ask_twice(self, n: int) -> str:
        first = await self.elicit("first", word={"type": "string"})
        second = await self.elicit("second", word={"type": "string"})
        return f"{first['content']['word']} {second['content']['word']}"

    async def tool_ask_many(self, n: int) -> str:
        answers = await asyncio.gather(*(self.elicit(f"q{i}", word={"type": "string"}) for i in range(n)))
        return f"{sum('error' in answer for answer in answers)} refused"

    async def tool_ask_secret(self, n: int) -> str:
        return json.dumps(await self.elicit("Your key, please", api_key={"type": "string"}))

    async def tool_sample(self, n: int) -> str:
        block = {"type": "text", "text": "Say something."}
        reply = await self.ask("sampling/createMessage", messages=[{"role": "user", "content": block}], maxTokens=9)
        return json.dumps(reply)

    async def tool_flood(self, n: int) -> str:
        for i in range(n):
            self.send(method="notifications/odd", params={"i": i})
        return f"sent {n}"

    async def tool_log(self, n: int) -> str:
        for i in range(n):
            self.send(method="notifications/message", params={"level": "warning", "logger": "odd", "data": f"line {i}"})
        return f"logged {n}"

    async def tool_die(self, n: int) -> str:
        print("about to die", file=sys.stderr, flush=True)
        os._exit(7)

    async def tool_deaf(self, n: int) -> str:
        self._hears.clear()
        await asyncio.sleep(n)
        self._hears.set()
        return "back"


if __name__ == "__main__":
    asyncio.run(MisbehavingUpstream().run())
