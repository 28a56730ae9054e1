"""A scripted MCP server over HTTP/1.1, of either generation, in the test's process.

A tool is an `async def` that gets a `Call`: it may wait in virtual time, report progress, ask questions, break the connection at an
exact byte, or answer with any bytes at all. What ran is in `ran`, what came in is in `received`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httptools
from tests.seam.callers import META, STATEFUL, STATELESS
from tests.seam.network import End, Listener
from tests.seam.waiting import the_loop

Wire = dict[str, Any]
Handler = Callable[["Call"], Awaitable[Any]]


class Failure(Exception):
    """Raise in a tool to answer with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: Wire = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class _Asks(Exception):
    """A tool of 2026 has a question: its call is answered by `input_required` and comes again."""

    def __init__(self, key: str, question: Wire) -> None:
        super().__init__(key)
        self.key, self.question = key, question


@dataclass(slots=True)
class Ran:
    """One execution of a tool."""

    tool: str
    arguments: Wire
    began: float
    ended: float | None = None
    how: str = "running"
    """`running`, `done`, `failed` or `cancelled`."""


@dataclass(slots=True)
class _Tool:
    description: Wire
    handler: Handler
    as_task: bool = False


@dataclass(slots=True)
class _Task:
    id: str
    run: asyncio.Task[Any]
    session: str
    inputs: dict[str, Wire] = field(default_factory=dict)
    answers: dict[str, asyncio.Future[Wire]] = field(default_factory=dict)


def text(said: str, **more: Any) -> Wire:
    """A tool's result that is one text."""
    return {"content": [{"type": "text", "text": said}], **more}


class Call:
    """One request to the upstream, as its tool sees it."""

    def __init__(self, upstream: Upstream, message: Wire, headers: dict[str, str], reply: _HttpReply) -> None:
        self.upstream = upstream
        self.message = message
        self.params: Wire = message.get("params") or {}
        self.arguments: Wire = self.params.get("arguments") or {}
        self.meta: Wire = self.params.get("_meta") or {}
        self.headers = headers
        self.session = headers.get("mcp-session-id", "")
        self.task: _Task | None = None
        self.reply = reply
        self._questions = itertools.count(1)

    @property
    def stateless(self) -> bool:
        return f"{META}protocolVersion" in self.meta

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def notify(self, method: str, params: Wire) -> None:
        """A notification on the stream of this call."""
        self.reply.event({"jsonrpc": "2.0", "method": method, "params": params})

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Nothing happens if the gateway did not ask for progress."""
        token = self.meta.get("progressToken")
        if token is not None:
            given = {"progressToken": token, "progress": done, "total": total, "message": message}
            self.notify("notifications/progress", {key: value for key, value in given.items() if value is not None})

    async def ask(self, method: str, params: Wire, key: str | None = None) -> Wire:
        """The answer to a question. In 2026 the tool runs again from its beginning with every answer it got."""
        key = key or f"question-{next(self._questions)}"
        if self.task is not None and self.stateless:
            return await self.upstream.ask_in_task(self.task, key, {"method": method, "params": params})
        if not self.stateless:
            return await self.upstream.ask(self.reply, method, params)
        given: Wire = self.params.get("inputResponses") or {}
        state = json.loads(self.params.get("requestState") or "{}")
        known = {**state, **given}
        if key not in known:
            raise _Asks(key, {"method": method, "params": params})
        found: Wire = known[key]
        return found

    async def elicit(self, message: str, schema: Wire | None = None) -> Wire:
        form = schema or {"type": "object", "properties": {"value": {"type": "string"}}}
        return await self.ask("elicitation/create", {"message": message, "requestedSchema": form})


class _HttpReply:
    """The answer to one HTTP request: JSON by default, a stream once something is said before the result."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.status = 200
        self.headers: dict[str, str] = {}
        self.is_stream = False
        self.over = False
        self._left: int | None = None

    def cut_after(self, count: int) -> None:
        """Break the connection once this many more bytes of the answer, its head included, have been sent."""
        self._left = count

    def write(self, data: bytes) -> None:
        """Any bytes at all."""
        if self._left is not None and len(data) >= self._left:
            self.end.write(data[: self._left])
            self.over = True
            self.end.close()
            return
        if self._left is not None:
            self._left -= len(data)
        if not self.end.is_closing():
            self.end.write(data)

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """A whole answer with this status."""
        if self.over:
            return
        self.over = True
        lines = {"content-length": str(len(body)), **self.headers, **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.write(f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body)

    def open_stream(self) -> None:
        if not self.is_stream and not self.over:
            self.is_stream = True
            lines = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **self.headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            self.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode())

    def event(self, message: Wire, *, event_id: str | None = None) -> None:
        self.open_stream()
        if not self.over:
            name = f"id: {event_id}\n" if event_id is not None else ""
            self.chunk(f"{name}data: {json.dumps(message)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        if not self.over:
            self.over = True
            self.write(b"0\r\n\r\n")

    def answer(self, message: Wire) -> None:
        """The response, in whatever form this answer has by now."""
        if self.is_stream:
            self.event(message)
            self.end_stream()
        else:
            self.send(self.status, json.dumps(message).encode(), {"content-type": "application/json"})


class Upstream:
    """See the module. `generation` is "2025" (sessions, GET stream) or "2026" (envelopes, subscriptions)."""

    def __init__(
        self,
        generation: str = "2025",
        *,
        capabilities: Mapping[str, Any] | None = None,
        tools: Mapping[str, Handler] | None = None,
        list_ttl_ms: int = 60_000,
    ) -> None:
        self.stateless = generation == "2026"
        self.capabilities: Wire = {"tools": {"listChanged": True}, **(capabilities or {})}
        self.list_ttl_ms = list_ttl_ms
        self.ran: list[Ran] = []
        self.received: list[Wire] = []
        """Every JSON-RPC message that came in, in order."""
        self.sessions: set[str] = set()
        self.name = ""
        self._tools: dict[str, _Tool] = {}
        self._methods: dict[str, Handler] = {}
        self._streams: list[tuple[_HttpReply, Wire]] = []
        self._asked: dict[str, asyncio.Future[Wire]] = {}
        self._tasks: dict[str, _Task] = {}
        self._numbers = itertools.count(1)
        self._running: dict[tuple[str, Any], asyncio.Task[None]] = {}
        self._listener: Listener | None = None
        self._ends: list[End] = []
        self._address = ("", 0)
        self.tool("echo", _echo)
        for name, handler in (tools or {}).items():
            self.tool(name, handler)

    # What it offers

    def tool(self, name: str, handler: Handler | None = None, *, as_task: bool = False, **description: Any) -> Any:
        """Offer a tool; also a decorator. `as_task`: a caller that asks for a task gets one of this server's own."""

        def offer(given: Handler) -> Handler:
            shown: Wire = {"name": name, "inputSchema": {"type": "object"}, **description}
            if as_task and not self.stateless:
                shown["execution"] = {"taskSupport": "optional"}
            self._tools[name] = _Tool(shown, given, as_task)
            return given

        return offer if handler is None else offer(handler)

    def withdraw(self, name: str) -> None:
        del self._tools[name]

    def on(self, method: str, handler: Handler) -> None:
        """Answer a whole method in another way; the handler gives the result."""
        self._methods[method] = handler

    def as_usual(self, method: str) -> None:
        self._methods.pop(method, None)

    # What was done

    def count(self, tool: str | None = None) -> int:
        """How often a tool, or any tool, was executed."""
        return sum(tool in (None, ran.tool) for ran in self.ran)

    @property
    def methods(self) -> Counter[str]:
        return Counter(message["method"] for message in self.received if "method" in message)

    # Where it is

    @property
    def url(self) -> str:
        return f"http://{self._address[0]}:{self._address[1]}/mcp"

    @property
    def connections(self) -> int:
        return sum(not end.is_closing() for end in self._ends)

    async def start(self, name: str = "") -> None:
        """Listen. After `stop`, again at the same address."""
        self.name = name or self.name
        if not self._address[1]:
            self._address = (f"10.0.0.{len(the_loop().network.names) + 1}", 8000)
            the_loop().network.name(f"{self.name}.test", self._address[0])
        self._listener = the_loop().network.listen(lambda: _Connection(self), self._address)

    async def stop(self) -> None:
        """Refuse new connections and break those that are open. What runs goes on running."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.hang_up()

    def hang_up(self) -> None:
        """Break every open connection."""
        for end in self._ends:
            end.abort()
        self._ends.clear()
        self._streams.clear()

    def fall_silent(self) -> None:
        """Whoever connects from now on gets no answer, and open connections say nothing more."""
        the_loop().network.fall_silent(self._address)
        for end in self._ends:
            end.pause_reading()

    def speak_again(self) -> None:
        the_loop().network.speak_again(self._address)
        for end in self._ends:
            end.resume_reading()

    def forget_sessions(self) -> None:
        """As after a restart: every session is unknown."""
        self.sessions.clear()

    async def close(self) -> None:
        await self.stop()
        for task in (*self._running.values(), *(each.run for each in self._tasks.values())):
            task.cancel()

    # What it says unasked

    def notify(self, method: str, params: Wire | None = None) -> None:
        """On every open GET stream (2025) or listening subscription (2026)."""
        for stream, meta in self._streams:
            given = {**(params or {}), "_meta": meta} if meta else params or {}
            stream.event({"jsonrpc": "2.0", "method": method, "params": given})

    async def ask(self, stream: _HttpReply, method: str, params: Wire) -> Wire:
        number = f"ask-{next(self._numbers)}"
        answer = self._asked[number] = the_loop().create_future()
        stream.event({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            return await answer
        finally:
            del self._asked[number]

    async def ask_in_task(self, task: _Task, key: str, question: Wire) -> Wire:
        task.inputs[key] = question
        answer = task.answers[key] = the_loop().create_future()
        return await answer

    # What comes in

    def opened(self, end: End) -> None:
        self._ends = [each for each in self._ends if not each.is_closing()] + [end]

    def request(self, method: str, headers: dict[str, str], body: bytes, reply: _HttpReply) -> None:
        session = headers.get("mcp-session-id", "")
        if session and session not in self.sessions:
            reply.send(404)
        elif method == "DELETE":
            self.sessions.discard(session)
            reply.send(200)
        elif method == "GET":
            self._open_get_stream(reply)
        else:
            self._posted(json.loads(body), headers, reply)

    def _open_get_stream(self, reply: _HttpReply) -> None:
        if self.stateless:
            reply.send(405)
        else:
            reply.open_stream()
            self._streams.append((reply, {}))

    def _posted(self, message: Wire, headers: dict[str, str], reply: _HttpReply) -> None:
        self.received.append(message)
        if "method" not in message:
            asked = self._asked.get(str(message.get("id")))
            if asked is not None and not asked.done():
                asked.set_result(message.get("result") or {"error": message.get("error")})
            reply.send(202)
        elif "id" not in message:
            self._notified(message)
            reply.send(202)
        else:
            call = Call(self, message, headers, reply)
            running = the_loop().create_task(self._answer(call), name=f"{self.name}: {message['method']}")
            key = (call.session, message["id"])
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))

    def _notified(self, message: Wire) -> None:
        if message["method"] == "notifications/cancelled":
            wanted = (message.get("params") or {}).get("requestId")
            for (_, number), running in list(self._running.items()):
                if number == wanted:
                    running.cancel()

    async def _answer(self, call: Call) -> None:
        message: Wire = {"jsonrpc": "2.0", "id": call.message["id"]}
        try:
            result = await self._result(call)
        except Failure as failure:
            call.reply.answer({**message, "error": failure.error})
        except _Asks as asks:
            state = json.loads(call.params.get("requestState") or "{}") | (call.params.get("inputResponses") or {})
            asked = {"inputRequests": {asks.key: asks.question}, "requestState": json.dumps(state)}
            call.reply.answer({**message, "result": {"resultType": "input_required", **asked}})
        else:
            if call.reply.over or result is _STAYS_OPEN:
                return
            shown = text(result) if isinstance(result, str) else result or {}
            call.reply.answer({**message, "result": {"resultType": "complete", **shown} if call.stateless else shown})

    async def _result(self, call: Call) -> Any:
        method = call.message["method"]
        if method in self._methods:
            return await self._methods[method](call)
        if method == "tools/call":
            return await self._call_tool(call)
        if method.startswith("tasks/"):
            return await self._about_task(method, call)
        if method == "initialize" and not self.stateless:
            return self._initialized(call)
        if method == "server/discover" and self.stateless:
            extensions = {f"{META}tasks": {}} if any(tool.as_task for tool in self._tools.values()) else {}
            return {"supportedVersions": [STATELESS], "capabilities": {**self.capabilities, "extensions": extensions}}
        if method == "tools/list":
            tools = [tool.description for tool in self._tools.values()]
            return {"tools": tools, **({"ttlMs": self.list_ttl_ms, "cacheScope": "public"} if self.stateless else {})}
        if method == "subscriptions/listen" and self.stateless:
            return self._listening(call)
        if method == "ping":
            return {}
        raise Failure(-32601, f"{method} is not known here")

    def _initialized(self, call: Call) -> Wire:
        session = f"{self.name}-session-{next(self._numbers)}"
        self.sessions.add(session)
        call.reply.headers["mcp-session-id"] = session
        capabilities = dict(self.capabilities)
        if any(tool.as_task for tool in self._tools.values()):
            capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        info = {"name": self.name, "version": "1"}
        return {"protocolVersion": STATEFUL, "capabilities": capabilities, "serverInfo": info}

    def _listening(self, call: Call) -> Any:
        meta = {f"{META}subscriptionId": call.message["id"]}
        self._streams.append((call.reply, meta))
        params = {"notifications": call.params.get("notifications") or {}, "_meta": meta}
        call.notify("notifications/subscriptions/acknowledged", params)
        return _STAYS_OPEN

    # Tools and tasks

    async def _call_tool(self, call: Call) -> Any:
        tool = self._tools.get(call.params.get("name", ""))
        if tool is None:
            raise Failure(-32602, f"there is no tool {call.params.get('name')!r}")
        if tool.as_task and self._wants_task(call):
            task = self._begin_task(tool, call)
            shown = self._shown(task)
            return {**shown, "resultType": "task"} if self.stateless else {"task": shown}
        return await self._run(tool, call)

    def _wants_task(self, call: Call) -> bool:
        declared = call.meta.get(f"{META}clientCapabilities") or {}
        return f"{META}tasks" in (declared.get("extensions") or {}) if self.stateless else "task" in call.params

    async def _run(self, tool: _Tool, call: Call) -> Any:
        ran = Ran(tool.description["name"], call.arguments, the_loop().time())
        self.ran.append(ran)
        try:
            result = await tool.handler(call)
        except asyncio.CancelledError:
            ran.how = "cancelled"
            raise
        except _Asks:
            # The tool has only asked; it is executed when it runs to its end.
            self.ran.remove(ran)
            raise
        except Exception:
            ran.how = "failed"
            raise
        else:
            ran.how = "done"
            return text(result) if isinstance(result, str) else result
        finally:
            ran.ended = the_loop().time()

    def _begin_task(self, tool: _Tool, call: Call) -> _Task:
        task_id = f"{self.name}-task-{next(self._numbers)}"
        run = the_loop().create_task(self._run(tool, call), name=f"{self.name}: {task_id}")
        run.add_done_callback(lambda done: done.cancelled() or done.exception())
        task = self._tasks[task_id] = call.task = _Task(task_id, run, call.session)
        return task

    def _shown(self, task: _Task) -> Wire:
        run, now = task.run, "2026-01-01T00:00:00Z"
        status = "working"
        if run.done():
            status = "cancelled" if run.cancelled() else "failed" if run.exception() else "completed"
        ttl, interval = ("ttlMs", "pollIntervalMs") if self.stateless else ("ttl", "pollInterval")
        shown: Wire = {"taskId": task.id, "status": status, "createdAt": now, "lastUpdatedAt": now}
        shown |= {ttl: None, interval: 1000}
        if self.stateless and status == "completed":
            shown["result"] = run.result()
        elif self.stateless and status == "working" and task.inputs:
            shown |= {"status": "input_required", "inputRequests": dict(task.inputs)}
        return shown

    async def _about_task(self, method: str, call: Call) -> Any:
        if method == "tasks/list":
            return {"tasks": [self._shown(task) for task in self._tasks.values() if task.session == call.session]}
        task = self._tasks.get(call.params.get("taskId", ""))
        if task is None or task.session != call.session:
            raise Failure(-32602, "there is no such task")
        if method == "tasks/get":
            return self._shown(task)
        if method == "tasks/cancel":
            task.run.cancel()
            await asyncio.wait([task.run])
            return {} if self.stateless else self._shown(task)
        if method == "tasks/update":
            for key, answer in (call.params.get("inputResponses") or {}).items():
                if task.inputs.pop(key, None) is not None:
                    task.answers[key].set_result(answer)
            return {}
        return await asyncio.shield(task.run)


_STAYS_OPEN = object()


async def _echo(call: Call) -> str:
    return json.dumps(call.arguments)


class _Connection(asyncio.Protocol):
    """One HTTP connection of the upstream; requests on it are answered one after the other."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def connection_made(self, transport: Any) -> None:
        self._end: End = transport
        self._upstream.opened(transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body, self._headers = b"", dict[str, str]()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body, self._headers = b"", {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        reply = _HttpReply(self._end)
        self._upstream.request(method, self._headers, self._body, reply)
