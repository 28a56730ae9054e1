"""An MCP upstream that answers at once, in both generations, and counts what reaches it.

It implements just enough to be proxied: `echo` (optionally with a long result) and `ask`, which holds its call open until
the caller has answered a form. `GET /count` returns how many messages and connections it received, so that the benchmark can
report what a relay costs its upstream. Deliberately below every framework; not an example of a good server.

    python tests/benchmarks/echo_server.py --http 9101 [--sse]
    python tests/benchmarks/echo_server.py --stdio
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
from typing import Any

import httptools
import msgspec
import uvloop

Wire = dict[str, Any]
ENVELOPE = "io.modelcontextprotocol/protocolVersion"
STATEFUL = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
STRING = {"type": "string"}
SCHEMA: Wire = {"type": "object", "properties": {"text": STRING, "fill": {"type": "integer"}}, "required": ["text"]}
TOOLS = [{"name": name, "description": f"{name} a text", "inputSchema": SCHEMA} for name in ("echo", "ask")]
FORM: Wire = {"type": "object", "properties": {"answer": STRING}, "required": ["answer"]}
QUESTION: Wire = {"method": "elicitation/create", "params": {"message": "Well?", "requestedSchema": FORM}}
INFO: Wire = {"name": "echo", "version": "1"}
FRESH: Wire = {"ttlMs": 60_000, "cacheScope": "public"}
decode = msgspec.json.Decoder().decode
encode = msgspec.json.encode
seen = {"messages": 0, "connections": 0, "calls": 0}
sessions = (f"{os.urandom(8).hex()}{number:016x}" for number in itertools.count(1))
pushed = itertools.count(1)
waiting: dict[str, tuple[Connection, Wire]] = {}


def answer(message: Wire) -> Wire | None:
    """The result of one request, or None for an unknown method."""
    params = message.get("params") or {}
    stateless = ENVELOPE in (params.get("_meta") or {})
    match message["method"]:
        case "tools/call":
            seen["calls"] += 1
            result = call(params)
            if params["name"] == "ask" and stateless and "inputResponses" not in params:
                return {"resultType": "input_required", "inputRequests": {"answer": QUESTION}}
        case "tools/list":
            result = {"tools": TOOLS} | (FRESH if stateless else {})
        case "initialize":
            asked = params["protocolVersion"]
            version = asked if asked in STATEFUL else STATEFUL[0]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": INFO}
        case "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **FRESH}
        case "ping":
            result = {}
        case _:
            return None
    return {"resultType": "complete", **result} if stateless else result


def call(params: Wire) -> Wire:
    given = params.get("arguments") or {}
    words = given.get("text", "") + "x" * given.get("fill", 0)
    return {"content": [{"type": "text", "text": words}], "isError": False}


def reply_to(message: Wire) -> Wire:
    result = answer(message)
    if result is None:
        return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection; requests on it are answered in order."""

    sse = False

    def connection_made(self, transport: Any) -> None:
        seen["connections"] += 1
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.path = b""

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        self.path = url

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        method = self.parser.get_method()
        if self.path == b"/count":
            seen["connections"] -= 1
            self.write(b"200 OK", encode(seen))
        elif method == b"POST":
            self.post(decode(body))
        else:
            self.write(b"405 Method Not Allowed" if method == b"GET" else b"200 OK", b"")

    def post(self, message: Wire) -> None:
        seen["messages"] += 1
        if "method" not in message:
            self.write(b"202 Accepted", b"")
            self.finish_question(message)
        elif "id" not in message:
            self.write(b"202 Accepted", b"")
        elif message["method"] == "tools/call" and message["params"]["name"] == "ask" and not stateless(message):
            self.push_question(message)
        else:
            extra = b""
            if message["method"] == "initialize":
                extra = b"mcp-session-id: " + next(sessions).encode() + b"\r\n"
            self.write_answer(reply_to(message), extra)

    def push_question(self, message: Wire) -> None:
        """Open an event stream on this call and ask; the call ends when the answer has been posted."""
        number = f"ask-{next(pushed)}"
        waiting[number] = (self, message)
        question = encode({"jsonrpc": "2.0", "id": number, **QUESTION})
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(head + chunk(question))

    def finish_question(self, message: Wire) -> None:
        asked = waiting.pop(str(message.get("id")), None)
        if asked is not None:
            connection, request = asked
            connection.transport.write(chunk(encode(reply_to(request))) + b"0\r\n\r\n")

    def write_answer(self, message: Wire, extra: bytes) -> None:
        if not self.sse:
            self.write(b"200 OK", encode(message), extra)
            return
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n" + extra + b"\r\n"
        self.transport.write(head + chunk(encode(message)) + b"0\r\n\r\n")

    def write(self, status: bytes, body: bytes, extra: bytes = b"") -> None:
        kind = b"content-type: application/json\r\n" if body else b""
        head = b"HTTP/1.1 %s\r\n%s%scontent-length: %d\r\n\r\n" % (status, kind, extra, len(body))
        self.transport.write(head + body)


def stateless(message: Wire) -> bool:
    return ENVELOPE in (message["params"].get("_meta") or {})


def chunk(message: bytes) -> bytes:
    event = b"event: message\r\ndata: " + message + b"\r\n\r\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


async def serve_http(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def serve_stdio() -> None:
    for line in sys.stdin.buffer:
        message = decode(line)
        if "id" in message and "method" in message:
            sys.stdout.buffer.write(encode(reply_to(message)) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--sse", action="store_true", help="answer calls as event streams")
    chosen = parser.parse_args()
    Connection.sse = chosen.sse
    uvloop.run(serve_http(chosen.http)) if chosen.http else serve_stdio()
