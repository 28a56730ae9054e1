"""An MCP server (2025-11-25, stdio) that sends messages during its calls: progress, log lines and questions, also in tasks of
its own.

`steps` reports each of its steps by progress and in a log line. It waits between them, so that a test can see that they come while
the work goes on. `ask` asks a question after `after` seconds. `steps_task` and `ask_task` can run as tasks of this server.

With a file as argument it notes there every call it runs and every answer it gets.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

RELATED = "io.modelcontextprotocol/related-task"
WHEN = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
TASKS = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
STEP_S = 0.12
NAMES = ("steps", "steps_task", "ask", "ask_task")
FORM = {"type": "object", "properties": {"word": {"type": "string"}}}
Wire = dict[str, Any]


class Notifying:
    def __init__(self, notes: Path | None) -> None:
        self._notes = notes
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Wire]] = {}
        self._tasks: dict[str, asyncio.Task[Wire]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if "method" not in message:
                self.note("answer", message.get("result") or message.get("error"))
                self._asked.pop(message["id"]).set_result(message.get("result") or {})
            elif "id" in message:
                answering = asyncio.create_task(self.answer(message))
                self._running.add(answering)
                answering.add_done_callback(self._running.discard)

    def note(self, what: str, value: Any) -> None:
        if self._notes is not None:
            with self._notes.open("a") as file:
                file.write(json.dumps({what: value}) + "\n")

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    async def answer(self, message: Wire) -> None:
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            info = {"name": "telling", "version": "1"}
            able = {"tools": {}, "logging": {}, "tasks": TASKS}
            result: Wire = {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info}
        elif method == "tools/list":
            result = {"tools": [tool(name) for name in NAMES]}
        elif method == "tools/call":
            result = await self.call(params)
        elif method == "tasks/result":
            ended = await asyncio.shield(self._tasks[params["taskId"]])
            result = {**ended, "_meta": {RELATED: {"taskId": params["taskId"]}}}
        elif method == "tasks/get":
            result = self.shown(params["taskId"])
        else:
            result = {}
        self.send(id=message["id"], result=result)

    async def call(self, params: Wire) -> Wire:
        name, arguments = params["name"], params.get("arguments") or {}
        self.note("call", name)
        token = (params.get("_meta") or {}).get("progressToken")
        if "task" not in params:
            return await self.run(name, arguments, token, {})
        task_id = f"theirs-{next(self._numbers)}"
        meta = {"_meta": {RELATED: {"taskId": task_id}}}
        self._tasks[task_id] = asyncio.create_task(self.run(name, arguments, token, meta))
        return {"task": self.shown(task_id)}

    def shown(self, task_id: str) -> Wire:
        status = "completed" if self._tasks[task_id].done() else "working"
        return {"taskId": task_id, "status": status, **WHEN, "ttl": None, "pollInterval": 250}

    async def run(self, name: str, arguments: Wire, token: Any, meta: Wire) -> Wire:
        reply = await (self.ask(arguments, meta) if name.startswith("ask") else self.steps(arguments, token, meta))
        return {"content": [{"type": "text", "text": reply}], "isError": False}

    async def steps(self, arguments: Wire, token: Any, meta: Wire) -> str:
        count = int(arguments.get("count", 3))
        for step in range(1, count + 1):
            await asyncio.sleep(STEP_S)
            if token is not None:
                progress = {"progressToken": token, "progress": step, "total": count, **meta}
                self.send(method="notifications/progress", params=progress)
            for level in ("debug", "warning"):
                line = {"level": level, "logger": "telling", "data": f"step {step}", **meta}
                self.send(method="notifications/message", params=line)
        await asyncio.sleep(STEP_S)
        return f"{count} steps"

    async def ask(self, arguments: Wire, meta: Wire) -> str:
        await asyncio.sleep(float(arguments.get("after", 0)))
        number = next(self._numbers)
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        params = {"message": "Which word?", "requestedSchema": FORM, **meta}
        self.send(id=number, method="elicitation/create", params=params)
        given = await waiting
        return f"the word is {(given.get('content') or {}).get('word')}"


def tool(name: str) -> Wire:
    described: Wire = {"name": name, "inputSchema": {"type": "object"}}
    return {**described, "execution": {"taskSupport": "optional"}} if name.endswith("_task") else described


if __name__ == "__main__":
    asyncio.run(Notifying(Path(sys.argv[1]) if len(sys.argv) > 1 else None).serve())
