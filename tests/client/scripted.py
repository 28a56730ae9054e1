"""A server in this process that sends scripted bytes, for tests about the order and timing of bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from taskgate.client import connect

INIT = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}


class Request:
    """One request as the scripted server saw it."""

    def __init__(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.verb, self.path, self.headers = verb, path, headers
        self.message: dict[str, Any] = json.loads(body) if body else {}

    @property
    def method(self) -> str:
        return str(self.message.get("method"))

    def reply(self, result: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": self.message.get("id"), "result": result}).encode()


def http(body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{lines}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


Script = Callable[[Request], bytes | None]


class Scripted:
    """A server that answers tool calls with the bytes of the script; None closes the connection."""

    def __init__(self, script: Script, handshake: bool) -> None:
        self.script, self.handshake, self.seen = script, handshake, list[Request]()
        self.url = ""

    def __call__(self, request: Request) -> bytes | None:
        self.seen.append(request)
        if not self.handshake:
            return self.script(request)
        if request.verb == "POST" and request.method == "initialize":
            return http(
                request.reply(INIT), mcp_session_id=f"session-{sum(r.method == 'initialize' for r in self.seen)}"
            )
        if request.verb == "POST" and "id" not in request.message:
            return http(b"", 202)
        if request.verb == "DELETE":
            return http(b"")
        return self.script(request)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                verb, path, _ = first.split()
                answer = self(Request(verb, path, headers, body))
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(script: Script, handshake: bool = True) -> AsyncIterator[Scripted]:
    scripted = Scripted(script, handshake)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield scripted
    finally:
        server.close()


def call_script(answer: Callable[[Request], bytes | None]) -> Script:
    return lambda request: answer(request) if request.verb == "POST" else http(b"", 405)


def stateful(url: str, **settings: Any) -> Any:
    return connect(url, generation="stateful", **settings)
