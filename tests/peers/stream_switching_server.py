"""A stateful HTTP server whose answers take another way than their call's own stream.

    python stream_switching_server.py PORT

The tool's name selects the stream of the answer:

- `beside`: the call's stream stays open and silent, the answer comes on the standalone GET stream.
- `accepted`: the call gets HTTP 202, the answer comes on the standalone GET stream.
- `neighbour`: the answer comes on the stream of the next call to `carrier`.
- `resumed`: the stream is primed and closed; the answer is sent on the resumed stream.
- `resumed_beside`: the same, but the answer comes on the standalone stream before the stream is resumed.
- `never`: the stream is primed and closed, and so is every resumption of it.
- `late`: the same as `never`, but the stream is silent for `seconds` first.
- `flood`: `count` notifications of `bytes` go to everyone who follows a standalone stream; the answer comes as usual.
- `gone`: the stream is primed and closed, and the server stops listening.
- `runs` returns how often each of them was executed.

By hand, without an SDK, because these are ways that a library does not take. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

Wire = dict[str, Any]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOOLS = (
    "beside",
    "accepted",
    "neighbour",
    "carrier",
    "resumed",
    "resumed_beside",
    "never",
    "late",
    "flood",
    "gone",
    "runs",
    "plain",
)
RETRY_MS = 300


def answer(request_id: Any, expected_text: str) -> Wire:
    return {"jsonrpc": "2.0", "id": request_id, "result": {"content": [{"type": "text", "text": expected_text}]}}


class Stream:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        writer.write(STREAM)

    def event(self, data: bytes, event_id: str = "", retry: int | None = None) -> None:
        named = f"id: {event_id}\n".encode() if event_id else b""
        pause = f"retry: {retry}\n".encode() if retry is not None else b""
        block = named + pause + b"data: " + data + b"\n\n"
        self.writer.write(b"%x\r\n%b\r\n" % (len(block), block))

    def message(self, message: Wire) -> None:
        self.event(json.dumps(message).encode())

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")


class Server:
    def __init__(self) -> None:
        self.beside: Stream | None = None
        self.followed: list[Stream] = []
        self.received = asyncio.Event()
        self.runs: Counter[str] = Counter()
        self.broken: dict[str, Any] = {}
        self.strays: list[Any] = []
        self.listener: asyncio.Server | None = None

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method = lines[0].split()[0]
                if method == "POST":
                    await self.post(json.loads(body), writer)
                elif method == "GET":
                    self.get(headers.get("last-event-id"), writer)
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    def get(self, last: str | None, writer: asyncio.StreamWriter) -> None:
        stream = Stream(writer)
        if last is None:
            self.beside = stream
            self.followed.append(stream)
            self.received.set()
            return
        if self.broken.get(last) is not None:
            stream.message(answer(self.broken.pop(last), "resumed"))
        stream.end()

    async def post(self, message: Wire, writer: asyncio.StreamWriter) -> None:
        if "id" not in message or "method" not in message:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        elif message["method"] == "tools/call":
            await self.call(message, writer)
        else:
            self.plain({"jsonrpc": "2.0", "id": message["id"], **self.about(message["method"])}, writer)

    def plain(self, message: Wire, writer: asyncio.StreamWriter) -> None:
        body = json.dumps(message).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: wander\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    def about(self, method: str) -> Wire:
        if method == "initialize":
            capabilities = {"tools": {}}
            info = {"name": "wandering", "version": "1"}
            return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
        if method == "tools/list":
            return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}}
        return {"error": {"code": -32601, "message": "no such method"}}

    async def call(self, message: Wire, writer: asyncio.StreamWriter) -> None:
        name, request_id = message["params"]["name"], message["id"]
        given = message["params"].get("arguments") or {}
        self.runs[name] += 1
        if name == "flood":
            note = {"jsonrpc": "2.0", "method": "notifications/vendor/flood", "params": {"value": "x" * given["bytes"]}}
            for stream in self.followed:
                for _ in range(given["count"]):
                    stream.message(note)
        if name in ("plain", "runs", "flood"):
            self.plain(answer(request_id, json.dumps(self.runs)), writer)
            return
        if name == "accepted":
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            await self.send_on_stream(request_id, name)
            return
        stream = Stream(writer)
        await asyncio.sleep(given.get("seconds", 0))
        if name == "beside":
            await self.send_on_stream(request_id, name)
        elif name == "neighbour":
            self.strays.append(request_id)
        elif name == "carrier":
            for stray in self.strays:
                stream.message(answer(stray, "neighbour"))
            self.strays.clear()
            stream.message(answer(request_id, name))
            stream.end()
        else:
            await self.break_off(name, request_id, stream)

    async def break_off(self, name: str, request_id: Any, stream: Stream) -> None:
        event_id = f"{name}-{request_id}"
        if name == "resumed":
            self.broken[event_id] = request_id
        stream.event(b"", event_id, RETRY_MS)
        stream.end()
        await stream.writer.drain()
        if name == "resumed_beside":
            await self.send_on_stream(request_id, name)
        elif name == "gone" and self.listener is not None:
            self.listener.close()
            if self.beside is not None:
                self.beside.writer.close()
            stream.writer.close()

    async def send_on_stream(self, request_id: Any, expected_text: str) -> None:
        await asyncio.wait_for(self.received.wait(), 10)
        assert self.beside is not None
        self.beside.message(answer("nobody", "nothing"))
        self.beside.message(answer(request_id, expected_text))


async def main(port: int) -> None:
    server = Server()
    server.listener = await asyncio.start_server(server.connection, "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
