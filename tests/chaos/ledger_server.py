"""An upstream with a ledger: every execution of a tool is written to a ledger and synced before anything else happens.

It supports both generations over HTTP. The crash tests read the ledger afterwards, which no crash of the gateway can change,
to find out how often each call was executed. Tools whose name ends in `_task` run as tasks of this server.

ledger_server.py PORT LEDGER [2025|2026|empty|own-tasks|no-list]

The last three are 2025 without a single tool, with a task of its own in every session, and unable to list its tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import httptools

ENVELOPE = "io.modelcontextprotocol/protocolVersion"
EXTENSION = "io.modelcontextprotocol/tasks"
WHEN = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
TOOLS = ("once", "read", "repeatable", "keyed", "once_task", "read_task")
ASKING = ("once_ask", "once_ask_task")
"""Only in 2026: they ask for a name and a colour before they run."""
FORM = {"type": "object", "properties": {"value": {"type": "string"}}}
QUESTIONS = {
    key: {"method": "elicitation/create", "params": {"message": f"Which {key}?", "requestedSchema": FORM}}
    for key in ("name", "colour")
}


class Ledger:
    """One line for the beginning and one for the end of every execution, each synced."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = itertools.count(1)

    def begin(self, tool: str, call: str) -> str:
        number = f"{os.getpid()}-{next(self._numbers)}"
        self._write(what="begin", number=number, tool=tool, call=call, at=time.time())
        return number

    def end(self, number: str) -> None:
        self._write(what="end", number=number, at=time.time())

    def note(self, what: str, **more: Any) -> None:
        self._write(what=what, at=time.time(), **more)

    def _write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fsync(self._file)


class Books:
    """What the tools do, and the tasks of this server."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._asking: dict[str, dict[str, Any]] = {}
        self._news: dict[str, asyncio.Event] = {}

    async def run(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        number = self._ledger.begin(tool, arguments["call"])
        await asyncio.sleep(arguments.get("seconds", 0))
        self._ledger.end(number)
        text = f"{arguments['call']} ran as execution {number}, receipt {secrets.token_hex(8)}"
        return {"content": [{"type": "text", "text": text}], "isError": False}

    def begin(self, tool: str, arguments: dict[str, Any], session: str) -> str:
        task_id = f"book-{session}-{secrets.token_hex(8)}"
        self._runs[task_id] = asyncio.create_task(self.run(tool, arguments))
        return task_id

    def begin_asking(self, tool: str, arguments: dict[str, Any]) -> str:
        task_id = f"book--{secrets.token_hex(8)}"
        self._asking[task_id], self._news[task_id] = dict(QUESTIONS), asyncio.Event()
        self._runs[task_id] = asyncio.create_task(self._run_when_released(task_id, tool, arguments))
        return task_id

    async def _run_when_released(self, task_id: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await self._news[task_id].wait()
        return await self.run(tool, arguments)

    def update(self, task_id: str, answers: dict[str, Any]) -> None:
        for key in answers:
            self._asking[task_id].pop(key, None)
        if not self._asking[task_id]:
            self._news[task_id].set()

    def shown(self, task_id: str, stateless: bool) -> dict[str, Any] | None:
        run = self._runs.get(task_id)
        if run is None:
            return None
        ttl, interval = ("ttlMs", "pollIntervalMs") if stateless else ("ttl", "pollInterval")
        status = "cancelled" if run.done() and run.cancelled() else "completed" if run.done() else "working"
        shown: dict[str, Any] = {"taskId": task_id, "status": status, **WHEN, ttl: None, interval: 250}
        if stateless and status == "completed":
            shown["result"] = run.result()
        elif self._asking.get(task_id):
            shown |= {"status": "input_required", "inputRequests": self._asking[task_id]}
        return shown

    def listed(self, session: str) -> list[dict[str, Any]]:
        mine = [task_id for task_id in self._runs if task_id.startswith(f"book-{session}-")]
        return [shown for task_id in mine if (shown := self.shown(task_id, False)) is not None]

    async def result(self, task_id: str) -> dict[str, Any] | None:
        run = self._runs.get(task_id)
        return await asyncio.shield(run) if run is not None else None

    def cancel(self, task_id: str) -> None:
        self._ledger.note("cancel", task=task_id)
        if task_id in self._runs:
            self._runs[task_id].cancel()


class Answers:
    def __init__(self, books: Books, ledger: Ledger, kind: str) -> None:
        self._books, self._ledger = books, ledger
        self._stateless, self._empty = kind == "2026", kind == "empty"
        self.sessions: set[str] = set()
        self._kind, self._gifts = kind, set[str]()

    def notified(self, method: str) -> None:
        if method == "notifications/cancelled":
            self._ledger.note("cancel", task=None)

    def open(self) -> str:
        session = secrets.token_hex(8)
        self.sessions.add(session)
        return session

    async def to(self, method: str, params: dict[str, Any], stateless: bool, session: str) -> dict[str, Any] | None:
        if method == "server/discover" and self._stateless:
            extensions: dict[str, Any] = {EXTENSION: {}}
            return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "extensions": extensions}}
        if method == "initialize" and not self._stateless:
            capabilities: dict[str, Any] = {
                "tools": {},
                "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
            }
            info = {"name": "ledger", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        if method == "tools/list":
            names = () if self._empty else (*TOOLS, *ASKING) if self._stateless else TOOLS
            tools = [self._tool(name) for name in names]
            return {"tools": tools, "ttlMs": 60_000, "cacheScope": "public"}
        if method == "tools/call":
            return await self._call(params, stateless, session)
        if method.startswith("tasks/"):
            # As with real servers, a task is known only in the session that made it.
            mine = stateless or params.get("taskId", f"book-{session}").startswith(f"book-{session}")
            return await self._task(method, params, stateless, session) if mine else None
        return None

    def _tool(self, name: str) -> dict[str, Any]:
        tool: dict[str, Any] = {"name": name, "inputSchema": {"type": "object"}}
        if name.endswith("_task") and not self._stateless:
            tool["execution"] = {"taskSupport": "optional"}
        return tool

    async def _call(self, params: dict[str, Any], stateless: bool, session: str) -> dict[str, Any]:
        name, arguments = params["name"], params["arguments"]
        declared = (params.get("_meta") or {}).get("io.modelcontextprotocol/clientCapabilities") or {}
        wanted = EXTENSION in (declared.get("extensions") or {}) if stateless else "task" in params
        if name == "once_ask":
            return await self._ask_first(params)
        if name == "once_ask_task" and wanted:
            asking = self._books.shown(self._books.begin_asking(name, arguments), stateless)
            return {**(asking or {}), "resultType": "task"}
        if not (name.endswith("_task") and wanted):
            return await self._books.run(name, arguments)
        task = self._books.shown(self._books.begin(name, arguments, session), stateless)
        assert task is not None
        return {**task, "resultType": "task"} if stateless else {"task": task}

    async def _ask_first(self, params: dict[str, Any]) -> dict[str, Any]:
        given = params.get("inputResponses") or {}
        left = {key: question for key, question in QUESTIONS.items() if key not in given}
        if left or params.get("requestState") != "kept":
            return {"resultType": "input_required", "inputRequests": left, "requestState": "kept"}
        if any("content" not in answer for answer in given.values()):
            self._ledger.note("not answered", call=params["arguments"]["call"], given=given)
        result = await self._books.run("once_ask", params["arguments"])
        expected_text = ", ".join(f"{key} {given[key].get('content', {}).get('value')}" for key in sorted(given))
        return {**result, "content": [*result["content"], {"type": "text", "text": expected_text}]}

    async def _task(self, method: str, params: dict[str, Any], stateless: bool, session: str) -> dict[str, Any] | None:
        task_id = params.get("taskId", "")
        if method == "tasks/get":
            return self._books.shown(task_id, stateless)
        if method == "tasks/update":
            self._books.update(task_id, params["inputResponses"])
            return {}
        if method == "tasks/result":
            return await self._books.result(task_id)
        if method == "tasks/cancel":
            self._books.cancel(task_id)
            return {} if stateless else self._books.shown(task_id, stateless)
        return await self._list(session) if method == "tasks/list" else None

    async def _list(self, session: str) -> dict[str, Any] | None:
        """Everything this session has; `own-tasks` keeps one that no caller requested, `no-list` cannot list at all."""
        if self._kind == "no-list":
            return None
        if self._kind == "own-tasks" and session not in self._gifts:
            self._gifts.add(session)
            self._books.begin("once_task", {"call": "kept"}, session)
        return {"tasks": self._books.listed(session)}


class Connection(asyncio.Protocol):
    """One HTTP connection; a request is answered when its tool is done."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._running: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self.session = value.decode()

    def on_message_begin(self) -> None:
        self.session = ""

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if self.session and self.session not in self._answers.sessions:
            self._say(b"404 Gone")
            return
        if self.parser.get_method() == b"DELETE":
            self._answers.sessions.discard(self.session)
            self._say(b"200 Yes")
            return
        if self.parser.get_method() != b"POST":
            self._say(b"405 No")
            return
        # A lost connection does not end the work: that is what makes a crash dangerous.
        running = asyncio.get_running_loop().create_task(self._answer(json.loads(body), self.session))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def _say(self, status: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)

    async def _answer(self, message: dict[str, Any], session: str) -> None:
        if "id" not in message:
            self._answers.notified(message["method"])
            self._say(b"202 Yes")
            return
        params = message.get("params") or {}
        stateless = ENVELOPE in (params.get("_meta") or {})
        result = await self._answers.to(message["method"], params, stateless, session)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            code = -32602 if message["method"].startswith("tasks/") else -32601
            reply["error"] = {"code": code, "message": "not known here"}
        else:
            reply["result"] = {"resultType": "complete", **result} if stateless else result
        out = json.dumps(reply).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(out)
        if message["method"] == "initialize":
            head += b"mcp-session-id: %b\r\n" % self._answers.open().encode()
        head += b"\r\n"
        if not self.transport.is_closing():
            self.transport.write(head + out)


async def main(port: int, path: Path, kind: str) -> None:
    ledger = Ledger(path)
    answers = Answers(Books(ledger), ledger, kind)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(answers), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "2025"))
