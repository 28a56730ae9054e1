"""An HTTP server for measurements with very little CPU time: it reads one JSON-RPC message and writes one reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httptools

Result = dict[str, Any] | None
"""None is a method that the server does not have."""
Answer = Callable[[dict[str, Any]], Result]


class NoReply(Exception):
    """Raised by an answer: this request is never answered."""


class Later(Exception):
    """Raised by an answer: this result is sent after some seconds."""

    def __init__(self, seconds: float, result: Result) -> None:
        self.seconds = seconds
        self.result = result


def compact(message: Any) -> bytes:
    """JSON as the SDKs write it: without spaces."""
    return json.dumps(message, separators=(",", ":")).encode()


class Connection(asyncio.Protocol):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if self.parser.get_method() != b"POST":
            self.transport.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            return
        message = json.loads(body)
        if "id" not in message:
            self.transport.write(b"HTTP/1.1 202 Yes\r\ncontent-length: 0\r\n\r\n")
            return
        try:
            result = self.answer(message)
        except NoReply:
            return
        except Later as later:
            asyncio.get_running_loop().call_later(later.seconds, self._reply, message, later.result)
            return
        self._reply(message, result)

    def _reply(self, message: dict[str, Any], result: Result) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        reply |= {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        out = compact(reply)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(out)
        self.transport.write(head + out)


async def serve(port: int, answer: Answer) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answer), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()
