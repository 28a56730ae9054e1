"""The floor of a relay in Python: each request of a caller is written to the upstream, and its reply back, unread.

It has the event loop and the HTTP parser of the gateway, and nothing else: no JSON, no limits, no decisions. Whatever
the gateway costs beyond this is its own work.

    python tests/benchmarks/bare_relay.py PORT UPSTREAM_PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
import uvloop


class Upstream(asyncio.Protocol):
    """The connection to the upstream that belongs to one connection of a caller."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[bytes] = []
        self.body: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        headers, self.headers, body, self.body = self.headers, [], self.body, []
        head = b"HTTP/1.1 %d OK\r\n%b\r\n" % (self.parser.get_status_code(), b"".join(headers))
        self.caller.transport.write(head + b"".join(body))


class Caller(asyncio.Protocol):
    """The connection of a caller; its first request waits until the upstream is connected."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.upstream: Upstream | None = None
        self.parser = httptools.HttpRequestParser(self)
        self.early = self.url = b""
        self.headers: list[bytes] = []
        self.body: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.connecting = asyncio.ensure_future(self.connect())

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        made = await loop.create_connection(lambda: Upstream(self), "127.0.0.1", self.upstream_port)
        self.upstream = made[1]
        self.parser.feed_data(self.early)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upstream is not None:
            self.upstream.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.upstream is None:
            self.early += data
        else:
            self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        headers, self.headers, body, self.body = self.headers, [], self.body, []
        assert self.upstream is not None
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (self.parser.get_method(), self.url, b"".join(headers))
        self.upstream.transport.write(head + b"".join(body))


async def serve(port: int, upstream_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Caller(upstream_port), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
