"""An upstream that sends back exactly what it got: in results, in notifications, in errors. Also one that misbehaves on demand.

    mirror_server.py stateful PORT      MCP 2025-11-25 over HTTP
    mirror_server.py stateless PORT     MCP 2026-07-28 over HTTP
    mirror_server.py stdio              MCP 2025-11-25 on standard input and output

It works on bytes where it matters, so that what a test sees is what really passed. `mirror` returns its params; `notify` sends them
as a vendor notification first; `fail` answers with an error whose data holds them; `ask` (stateless) asks a question after `value`
seconds; `break` does what `how` selects; `headers` returns the HTTP headers of the call; `sign` requires that an address is opened
first, and `signed` reports that it was. With `--empty` it offers no tools; with `--record FILE` it appends the `value` of each call
to that file before it executes the call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import httptools

TOOLS = [
    {"name": name, "description": name, "inputSchema": {"type": "object"}, "vendorField": {"big": 2**70}}
    for name in ("mirror", "notify", "fail", "break", "sleep", "headers", "sign", "signed", "ask")
]
RECORD: int | None = None


def described(stateless: bool, params: dict[str, Any]) -> dict[str, Any]:
    if stateless:
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "public"}
    return {
        "protocolVersion": params.get("protocolVersion", "2025-11-25"),
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "mirror", "version": "1"},
    }


async def answers(message: dict[str, Any], stateless: bool, headers: dict[str, str]) -> list[bytes]:
    """The messages that answer one request: notifications first, the response last."""
    method, params = message.get("method"), message.get("params") or {}
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if method == ("server/discover" if stateless else "initialize"):
        result: dict[str, Any] = described(stateless, params)
    elif method == "tools/list":
        result = {"tools": TOOLS} | ({"ttlMs": 0, "cacheScope": "public"} if stateless else {})
    elif method == "tools/call":
        return await call(head, params, stateless, headers)
    elif method == "ping":
        result = {}
    else:
        return [json.dumps({**head, "error": {"code": -32601, "message": "Method not found"}}).encode()]
    if stateless:
        result["resultType"] = "complete"
    return [json.dumps({**head, "result": result}).encode()]


async def call(head: dict[str, Any], params: dict[str, Any], stateless: bool, headers: dict[str, str]) -> list[bytes]:
    value = headers if params["name"] == "headers" else (params.get("arguments") or {}).get("value")
    if RECORD is not None:
        os.write(RECORD, json.dumps(value).encode() + b"\n")
    kind = {"resultType": "complete"} if stateless else {}
    result = {"content": [], "structuredContent": {"value": value}, "vendor/extra": value, "seen": params, **kind}
    if params["name"] == "fail":
        error = {"code": -31999, "message": "as asked", "data": {"value": value}}
        return [json.dumps({**head, "error": error}).encode()]
    if params["name"] == "sign":
        item = {"mode": "url", "message": "Sign in", "elicitationId": value, "url": "https://example.test/sign"}
        error = {"code": -32042, "message": "URL elicitation required", "data": {"elicitations": [item]}}
        return [json.dumps({**head, "error": error}).encode()]
    if params["name"] == "sleep":
        await asyncio.sleep(float(value))
    if params["name"] == "ask" and "inputResponses" not in params:
        await asyncio.sleep(float(value))
        form = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
        asked = {"sure": {"method": "elicitation/create", "params": form}}
        result = {"resultType": "input_required", "inputRequests": asked, "requestState": "mirror"}
    done = json.dumps({**head, "result": result}).encode()
    if params["name"] == "notify":
        note = {"jsonrpc": "2.0", "method": "notifications/vendor/mirror", "params": {"value": value}}
        return [json.dumps(note).encode(), done]
    if params["name"] == "signed":
        over = {"method": "notifications/elicitation/complete", "params": {"elicitationId": value}}
        return [json.dumps({"jsonrpc": "2.0", **over}).encode(), done]
    if params["name"] == "break":
        return broken(value, head, done)
    return [done]


def broken(how: str, head: dict[str, Any], done: bytes) -> list[bytes]:
    return {
        "garbage": [b"this is not JSON"],
        "duplicate keys": [b'{"jsonrpc":"2.0","id":%s,"result":{"a":1,"a":2}}' % json.dumps(head["id"]).encode()],
        "foreign id": [json.dumps({**head, "id": "nobody", "result": {}}).encode(), done],
        "twice": [done, done],
        "huge": [json.dumps({**head, "result": {"content": [], "x": "y" * (17 * 1024 * 1024)}}).encode()],
        "deep": [
            b'{"jsonrpc":"2.0","id":%s,"result":%s%s}' % (json.dumps(head["id"]).encode(), b"[" * 150, b"]" * 150)
        ],
        "nothing": [],
    }[how]


class Connection(asyncio.Protocol):
    stateless = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.headers: dict[str, str] = {}

    def on_message_begin(self) -> None:
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if self.parser.get_method() != b"POST":
            self.transport.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
            return
        message = json.loads(body)
        if "id" not in message or "method" not in message:
            self.transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            return
        self.task = asyncio.get_running_loop().create_task(self.reply(message))

    async def reply(self, message: dict[str, Any]) -> None:
        found = await answers(message, self.stateless, dict(self.headers))
        if len(found) == 1 and found[0].startswith(b"{"):
            self._write(b"application/json", found[0])
        else:
            self._write(b"text/event-stream", b"".join(b"data: " + one + b"\n\n" for one in found))

    def _write(self, kind: bytes, body: bytes) -> None:
        session = b"" if self.stateless else b"mcp-session-id: mirror\r\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n%scontent-length: %d\r\n\r\n" % (kind, session, len(body))
        self.transport.write(head + body)


async def serve_http(port: int, stateless: bool) -> None:
    kind = type("Chosen", (Connection,), {"stateless": stateless})
    server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", port)
    await server.serve_forever()


async def serve_stdio() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sys.stdout.buffer.write(b"A banner that is not a message\n\n{half a line\n")
    sys.stdout.buffer.flush()
    while line := await reader.readline():
        message = json.loads(line)
        if "id" in message and "method" in message:
            for answer in await answers(message, False, {}):
                sys.stdout.buffer.write(answer + b"\n")
                sys.stdout.buffer.flush()


if __name__ == "__main__":
    if "--empty" in sys.argv:
        TOOLS.clear()
    if "--record" in sys.argv:
        file = sys.argv[sys.argv.index("--record") + 1]
        RECORD = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if sys.argv[1] == "stdio":
        asyncio.run(serve_stdio())
    else:
        asyncio.run(serve_http(int(sys.argv[2]), sys.argv[1] == "stateless"))
