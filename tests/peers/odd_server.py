"""A stateful server on standard streams that does on purpose what few servers do: bad schemas, floods, strange addresses.

No SDK: it writes JSON-RPC itself, so that it can violate the protocol. Every tool is one function; `seen` gives back what the
gateway has sent. It only needs the standard library.

    python odd_server.py [--deep]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Wire = dict[str, Any]
STRING = {"type": "string"}
MESSAGE = {"role": "user", "content": {"type": "text", "text": "Say hello"}}


def bomb(levels: int) -> Wire:
    """A few hundred bytes that ask for endless work."""
    parts: Wire = {"p0": {"type": "object"}}
    for level in range(levels):
        parts[f"p{level + 1}"] = {"allOf": [{"$ref": f"#/$defs/p{level}"}] * 3}
    return {"type": "object", "$defs": parts, "$ref": f"#/$defs/p{levels}"}


def deep(levels: int) -> Wire:
    schema: Wire = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


class OddServer:
    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.waiting: dict[int, asyncio.Future[Wire]] = {}
        self.seen: list[Wire] = []
        self.open: dict[Any, asyncio.Task[None]] = {}

    def send(self, message: Wire) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    async def ask(self, method: str, params: Wire) -> Wire:
        number = next(self.numbers)
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        self.send({"id": f"odd-{number}", "method": method, "params": params})
        try:
            return await answer
        finally:
            del self.waiting[number]

    def take(self, message: Wire) -> None:
        if "method" not in message:
            number = int(str(message["id"]).removeprefix("odd-"))
            if number in self.waiting:
                self.waiting[number].set_result(message)
            return
        if "id" not in message:
            self.seen.append(message)
            if message["method"] == "notifications/cancelled":
                self.cancelled(message["params"].get("requestId"))
            return
        self.open[message["id"]] = asyncio.create_task(self.answer(message))

    def cancelled(self, request_id: Any) -> None:
        task = self.open.get(request_id)
        if task is not None:
            task.cancel()

    async def answer(self, message: Wire) -> None:
        method, params = message["method"], message.get("params") or {}
        try:
            result = await METHODS[method](self, params) if method in METHODS else None
            if result is None:
                self.send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
            elif "error" in result:
                self.send({"id": message["id"], "error": result["error"]})
            else:
                self.send({"id": message["id"], "result": result})
        except asyncio.CancelledError:
            if params.get("name") == "stubborn":
                self.send({"id": message["id"], "result": text("too late")})
        finally:
            self.open.pop(message["id"], None)

    async def serve(self) -> None:
        reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.take(json.loads(line))


def text(expected_text: str, **more: Any) -> Wire:
    return {"content": [{"type": "text", "text": expected_text}], **more}


async def initialize(_server: OddServer, params: Wire) -> Wire:
    _server.seen.append({"method": "initialize", "params": params})
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}, "completions": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    }


async def list_tools(_server: OddServer, _params: Wire) -> Wire:
    return {"tools": [{"name": name, **declared} for name, (declared, _) in TOOLS.items()]}


async def list_prompts(_server: OddServer, _params: Wire) -> Wire:
    return {"prompts": [{"name": "greet", "arguments": [{"name": "city"}]}]}


async def get_prompt(_server: OddServer, params: Wire) -> Wire:
    body = {"type": "text", "text": json.dumps(params.get("arguments"))}
    return {"messages": [{"role": "user", "content": body}]}


async def list_resources(_server: OddServer, _params: Wire) -> Wire:
    return {"resources": [{"uri": f"notes://{name}", "name": name} for name in ("alpha", "alphabet", "beta")]}


async def list_templates(_server: OddServer, _params: Wire) -> Wire:
    return {"resourceTemplates": [{"uriTemplate": "notes://{name}", "name": "note"}]}


async def complete(server: OddServer, params: Wire) -> Wire:
    server.seen.append({"method": "completion/complete", "params": params})
    typed = params["argument"]["value"]
    if params["ref"].get("name") == "greet":
        cities = [city for city in ("Paris", "Parma", "Prague") if city.startswith(typed)]
        return {"completion": {"values": cities, "total": len(cities), "hasMore": False}, "extra": "kept"}
    return {"completion": {"values": []}}


async def call_tool(server: OddServer, params: Wire) -> Wire:
    declared = TOOLS.get(params["name"])
    if declared is None:
        return {"error": {"code": -32602, "message": "no such tool"}}
    return await declared[1](server, params.get("arguments") or {}, params)


async def echo(_server: OddServer, arguments: Wire, params: Wire) -> Wire:
    return text(json.dumps({"arguments": arguments, "_meta": params.get("_meta")}))


async def seen(server: OddServer, _arguments: Wire, _params: Wire) -> Wire:
    return text(json.dumps(server.seen))


async def measure(_server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    shown = {"good": {"length": 3}, "bad": {"length": "three"}}.get(arguments.get("how", "good"))
    return text("measured") if shown is None else text("measured", structuredContent=shown)


async def flood(server: OddServer, arguments: Wire, params: Wire) -> Wire:
    """Progress as fast as possible, and one update without a number."""
    token = (params.get("_meta") or {}).get("progressToken")
    for step in range(1, int(arguments.get("steps", 200)) + 1):
        if token is not None:
            server.send({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
    if token is not None:
        server.send({"method": "notifications/progress", "params": {"progressToken": token, "progress": "soon"}})
    return text("done")


async def wait(_server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    await asyncio.sleep(float(arguments.get("seconds", 30)))
    return text("waited")


async def sample(server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    """Ask for sampling with exactly the params that the caller of the tool gave."""
    params = {"messages": [MESSAGE], "maxTokens": 50, **arguments.get("params", {})}
    answer = await server.ask("sampling/createMessage", params)
    return text(json.dumps(answer.get("result") or {"error": answer["error"]}))


async def sample_outside(server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    """Ask after the call is over."""

    async def later() -> None:
        await asyncio.sleep(0.05)
        params = {"messages": [MESSAGE], "maxTokens": 50}
        answer = await server.ask("sampling/createMessage", params)
        server.send({"method": "notifications/odd/late", "params": answer.get("error") or answer["result"]})

    server.open["later"] = asyncio.create_task(later())
    return text("later")


async def ping_back(server: OddServer, _arguments: Wire, _params: Wire) -> Wire:
    return text(json.dumps(await server.ask("ping", {})))


async def open_url(server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    params = {"mode": "url", "message": "Please sign in", "elicitationId": "odd-1", "url": arguments["url"]}
    answer = await server.ask("elicitation/create", params)
    return text(json.dumps(answer.get("result") or {"error": answer["error"]}))


async def ask_forms(server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    """So many forms at once; the errors among the answers, when the first of them has come."""
    form = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"x": STRING}}}
    asked = [asyncio.ensure_future(server.ask("elicitation/create", form)) for _ in range(arguments["count"])]
    done, rest = await asyncio.wait(asked, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for waiting in rest:
        waiting.cancel()
    return text(json.dumps([answer.result().get("error") for answer in done]))


async def list_form(server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    """The vendor's own form of the question, with exactly the list that the caller of the tool gave."""
    answer = await server.ask("elicitation/create", {"elicitations": arguments["list"]})
    return text(json.dumps(answer.get("result") or {"error": answer["error"]}))


async def needs_url(server: OddServer, arguments: Wire, _params: Wire) -> Wire:
    """With `once`, only the first call requires the address to be opened."""
    if arguments.get("once") and {"opened": arguments["url"]} in server.seen:
        return text("signed in")
    server.seen.append({"opened": arguments.get("url")})
    item = {"mode": "url", "message": "Sign in first", "elicitationId": arguments.get("id", "first")}
    if arguments.get("done"):
        server.send(
            {"method": "notifications/elicitation/complete", "params": {"elicitationId": item["elicitationId"]}}
        )
        return text("all done")
    data = {"elicitations": [{**item, "url": arguments["url"]}]}
    return {"error": {"code": -32042, "message": "URL elicitation required", "data": data}}


METHODS: dict[str, Callable[[OddServer, Wire], Awaitable[Wire]]] = {
    "initialize": initialize,
    "tools/list": list_tools,
    "tools/call": call_tool,
    "prompts/list": list_prompts,
    "prompts/get": get_prompt,
    "resources/list": list_resources,
    "resources/templates/list": list_templates,
    "completion/complete": complete,
}
CITY = {
    "type": "object",
    "properties": {
        "city": {**STRING, "enum": ["Paris", "Parma", "Prague", "Berlin"]},
        "units": {"const": "metric"},
        "dry_run": {"type": "boolean"},
        "note": STRING,
        "api_key": STRING,
        "uri": {**STRING, "format": "uri"},
        "count": {"type": "integer", "minimum": 1},
    },
    "required": ["city"],
    "additionalProperties": False,
}
MEASURED = {"type": "object", "properties": {"length": {"type": "integer"}}, "required": ["length"]}
ANY = {"type": "object"}
Tool = Callable[[OddServer, Wire, Wire], Awaitable[Wire]]
TOOLS: dict[str, tuple[Wire, Tool]] = {
    "weather": ({"inputSchema": CITY}, echo),
    "echo": ({"inputSchema": ANY}, echo),
    "seen": ({"inputSchema": ANY}, seen),
    "measure": ({"inputSchema": ANY, "outputSchema": MEASURED}, measure),
    "bomb": ({"inputSchema": bomb(20)}, echo),
    "unmeasured": ({"inputSchema": ANY, "outputSchema": bomb(20)}, measure),
    "remote": ({"inputSchema": {"type": "object", "$ref": "https://example.test/schema.json"}}, echo),
    "flood": ({"inputSchema": ANY}, flood),
    "wait": ({"inputSchema": ANY}, wait),
    "stubborn": ({"inputSchema": ANY}, wait),
    "sample": ({"inputSchema": ANY}, sample),
    "sample_outside": ({"inputSchema": ANY}, sample_outside),
    "ping_back": ({"inputSchema": ANY}, ping_back),
    "open_url": ({"inputSchema": ANY}, open_url),
    "ask_forms": ({"inputSchema": ANY}, ask_forms),
    "list_form": ({"inputSchema": ANY}, list_form),
    "needs_url": ({"inputSchema": ANY}, needs_url),
}


if __name__ == "__main__":
    if "--deep" in sys.argv:
        TOOLS["deep"] = ({"inputSchema": deep(160)}, echo)
    asyncio.run(OddServer().serve())
