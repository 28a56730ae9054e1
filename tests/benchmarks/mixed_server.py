"""The server behind `mixed`: one quick tool, one with many words to complete, and one that never answers.

mixed_server.py PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

WORDS = {"type": "object", "properties": {"word": {"type": "string", "enum": [f"word{n}" for n in range(2_000)]}}}
ANY = {"type": "object"}
TOOLS = [
    {"name": "quick", "inputSchema": ANY},
    {"name": "words", "inputSchema": WORDS},
    {"name": "wait_in_line", "inputSchema": ANY},
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "quick"}]}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "initialize":
        info = {"name": "mixed", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    return None


class Connection(asyncio.Protocol):
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
        params = message.get("params") or {}
        if params.get("name") == "wait_in_line":
            return
        result = answer(message["method"], params)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        reply |= {"result": result} if result else {"error": {"code": -32601, "message": "no such method"}}
        out = json.dumps(reply).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(out)
        self.transport.write(head + out)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]), backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
