"""Prints what one small exchange of the HTTP client costs: CPU microseconds of this process, and calls per second.

Run it by hand: `python tests/benchmarks/http_client.py [seconds] [concurrency]`. The server runs in another process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import sys
import time
from typing import cast

import uvloop

from taskgate.mcp.http import HttpClient, Target

_BODY = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}],"isError":false}}'
_JSON = b"HTTP/1.1 200 OK\r\ndate: x\r\nserver: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_SSE = b"event: message\r\ndata: %b\r\n\r\n" % _BODY
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
)
_REPLIES = {"json": _JSON % (len(_BODY), _BODY), "sse": _STREAM % (len(_SSE), _SSE)}


class _Answer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(_REPLIES["sse" if b" /sse " in data[:20] else "json"])


def _serve(listener: socket.socket) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Answer, sock=listener)
        await server.serve_forever()

    uvloop.run(run())


async def _measure(path: str, port: int, seconds: float, concurrency: int) -> None:
    client = HttpClient()
    target = Target.parse(f"http://127.0.0.1:{port}/{path}", {"Accept": "application/json, text/event-stream"})
    headers = ((b"Content-Type", b"application/json"), (b"Mcp-Protocol-Version", b"2025-11-25"))
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}'
    count = 0
    end = time.monotonic() + seconds

    async def caller() -> None:
        nonlocal count
        while time.monotonic() < end:
            await client.exchange(target, b"POST", headers, body, deadline_s=60, on_event=lambda event: True)
            count += 1

    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    opened = client.open_connections(target.origin)
    print(f"{path:5} {cpu / count * 1e6:6.1f} us CPU/exchange  {count / wall:8.0f} exchanges/s  {opened} connections")
    await client.close()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    concurrency = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    listener = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    try:
        for path in _REPLIES:
            uvloop.run(_measure(path, listener.getsockname()[1], seconds, concurrency))
    finally:
        server.terminate()
        server.join(5)


if __name__ == "__main__":
    main()
