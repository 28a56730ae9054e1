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
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from tests.virtual_time.callers import META, STATEFUL, STATELESS
from tests.virtual_time.network import End, Listener
from tests.virtual_time.upstream_call import AsksInput, Call, Failure
from tests.virtual_time.upstream_http import HttpConnection, HttpReply
from tests.virtual_time.upstream_tasks import OwnTasks
from tests.virtual_time.waiting import the_loop

Wire = dict[str, Any]
Handler = Callable[[Call], Awaitable[Any]]
H = TypeVar("H", bound=Handler)


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


def text(expected_text: str, **more: Any) -> Wire:
    """A tool's result that is one text."""
    return {"content": [{"type": "text", "text": expected_text}], **more}


class Upstream:
    """See the module. `generation` is "2025" (sessions, GET stream), "2026" (envelopes, subscriptions) or "both"."""

    def __init__(
        self,
        generation: str = "2025",
        *,
        capabilities: Mapping[str, Any] | None = None,
        tools: Mapping[str, Handler] | None = None,
        list_ttl_ms: int = 60_000,
        authorized: Callable[[str], bool] = lambda _header: True,
        challenge: Callable[[], tuple[int, str]] = lambda: (401, "Bearer"),
    ) -> None:
        self._authorized = authorized
        self._challenge = challenge
        self.stateless = generation == "2026"
        self.supports_2025, self.supports_2026 = generation != "2026", generation != "2025"
        self.capabilities: Wire = {"tools": {"listChanged": True}, **(capabilities or {})}
        self.list_ttl_ms = list_ttl_ms
        self.ran: list[Ran] = []
        self.received: list[Wire] = []
        """Every JSON-RPC message that came in, in order."""
        self.sessions: set[str] = set()
        self.name = ""
        self._tools: dict[str, _Tool] = {}
        self._methods: dict[str, Handler] = {}
        self._streams: list[tuple[HttpReply, Wire]] = []
        self._asked: dict[str, asyncio.Future[Wire]] = {}
        self._tasks = OwnTasks("", self.stateless)
        self._numbers = itertools.count(1)
        self._running: dict[tuple[str, Any], asyncio.Task[None]] = {}
        self._listener: Listener | None = None
        self._ends: list[End] = []
        self._check_closed_ends_above = 100
        self._address = ("", 0)
        self.tool("echo", _echo)
        for name, handler in (tools or {}).items():
            self.tool(name, handler)

    # What it offers

    @overload
    def tool(
        self, name: str, handler: None = None, *, as_task: bool = False, **description: Any
    ) -> Callable[[H], H]: ...
    @overload
    def tool(self, name: str, handler: H, *, as_task: bool = False, **description: Any) -> H: ...
    def tool(
        self, name: str, handler: H | None = None, *, as_task: bool = False, **description: Any
    ) -> Callable[[H], H] | H:
        """Offer a tool; also a decorator. `as_task`: a caller that asks for a task gets one of this server's own."""

        def offer(given: H) -> H:
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
        self.name = self._tasks.name = name or self.name
        if not self._address[1]:
            self._address = (f"10.0.0.{len(the_loop().network.names) + 1}", 8000)
            the_loop().network.name(f"{self.name}.test", self._address[0])
        self._listener = the_loop().network.listen(lambda: HttpConnection(self._opened, self._request), self._address)

    async def stop(self) -> None:
        """Refuse new connections and break those that are open. What runs goes on running."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.disconnect()

    def disconnect(self) -> None:
        """Break every open connection."""
        for end in self._ends:
            end.abort()
        self._ends.clear()
        self._streams.clear()

    def stop_answering(self) -> None:
        """From now on new connections get no answer, and nothing more is sent on open ones."""
        the_loop().network.stop_answering(self._address)
        for end in self._ends:
            end.pause_reading()

    def resume_answering(self) -> None:
        the_loop().network.resume_answering(self._address)
        for end in self._ends:
            end.resume_reading()

    def forget_sessions(self) -> None:
        """As after a restart: every session is unknown."""
        self.sessions.clear()

    async def close(self) -> None:
        await self.stop()
        self._tasks.cancel_all()
        for running in list(self._running.values()):
            running.cancel()

    # Unsolicited messages

    def notify(self, method: str, params: Wire | None = None) -> None:
        """On every open GET stream (2025) or listening subscription (2026)."""
        for stream, meta in self._streams:
            given = {**(params or {}), "_meta": meta} if meta else params or {}
            stream.event({"jsonrpc": "2.0", "method": method, "params": given})

    async def _ask(self, stream: HttpReply, method: str, params: Wire) -> Wire:
        number = f"ask-{next(self._numbers)}"
        answer = self._asked[number] = the_loop().create_future()
        stream.event({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            return await answer
        finally:
            del self._asked[number]

    # What comes in

    def _opened(self, end: End) -> None:
        self._ends.append(end)
        if len(self._ends) > self._check_closed_ends_above:
            self._ends = [each for each in self._ends if not each.is_closing()]
            self._check_closed_ends_above = 2 * len(self._ends) + 100

    def _request(self, method: str, headers: dict[str, str], body: bytes, reply: HttpReply) -> None:
        session = headers.get("mcp-session-id", "")
        if not self._authorized(headers.get("authorization", "")):
            status, challenge = self._challenge()
            reply.send(status, headers={"www-authenticate": challenge})
        elif session and session not in self.sessions:
            reply.send(404)
        elif method == "DELETE":
            self.sessions.discard(session)
            reply.send(200)
        elif method == "GET":
            self._open_get_stream(reply)
        else:
            self._posted(json.loads(body), headers, reply)

    def _open_get_stream(self, reply: HttpReply) -> None:
        if not self.supports_2025:
            reply.send(405)
        else:
            reply.open_stream()
            self._streams.append((reply, {}))

    def _posted(self, message: Wire, headers: dict[str, str], reply: HttpReply) -> None:
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
            call = Call(message, headers, reply, self._ask)
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
        except AsksInput as asks:
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
            return await self._tasks.answer(method, call)
        if method == "initialize" and self.supports_2025:
            return self._initialized(call)
        if method == "server/discover" and self.supports_2026:
            extensions = dict(self.capabilities.get("extensions", {}))
            if any(tool.as_task for tool in self._tools.values()):
                extensions[f"{META}tasks"] = {}
            return {"supportedVersions": [STATELESS], "capabilities": {**self.capabilities, "extensions": extensions}}
        if method == "tools/list":
            tools = [tool.description for tool in self._tools.values()]
            return {"tools": tools, **({"ttlMs": self.list_ttl_ms, "cacheScope": "public"} if call.stateless else {})}
        if method == "subscriptions/listen" and self.supports_2026:
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
        if tool.as_task and self._tasks.wanted(call):
            shown = self._tasks.shown(self._tasks.begin(self._run(tool, call), call))
            return {**shown, "resultType": "task"} if self.stateless else {"task": shown}
        return await self._run(tool, call)

    async def _run(self, tool: _Tool, call: Call) -> Any:
        ran = Ran(tool.description["name"], call.arguments, the_loop().time())
        self.ran.append(ran)
        try:
            result = await tool.handler(call)
        except asyncio.CancelledError:
            ran.how = "cancelled"
            raise
        except AsksInput:
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


_STAYS_OPEN = object()


async def _echo(call: Call) -> str:
    return json.dumps(call.arguments)
