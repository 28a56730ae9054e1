"""HTTP/1.1 as a scripted upstream uses it: JSON or an event stream, whole or broken off at an exact byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import httptools
from tests.virtual_time.network import End

Wire = dict[str, Any]
Requested = Callable[[str, dict[str, str], bytes, "HttpReply"], None]


class HttpReply:
    """The answer to one HTTP request: JSON by default, a stream if a message precedes the result."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.status = 200
        self.headers: dict[str, str] = {}
        self.is_stream = False
        self.over = False
        self._left: int | None = None

    def cut_after(self, count: int) -> None:
        """Break the connection once this many more bytes of the answer, its head included, have been sent."""
        self._left = count

    def write(self, data: bytes) -> None:
        """Any bytes at all."""
        if self._left is not None and len(data) >= self._left:
            self.end.write(data[: self._left])
            self.over = True
            self.end.close()
            return
        if self._left is not None:
            self._left -= len(data)
        if not self.end.is_closing():
            self.end.write(data)

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """A whole answer with this status."""
        if self.over:
            return
        self.over = True
        lines = {"content-length": str(len(body)), **self.headers, **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.write(f"HTTP/1.1 {status} Scripted\r\n{head}\r\n".encode() + body)

    def open_stream(self) -> None:
        if not self.is_stream and not self.over:
            self.is_stream = True
            lines = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **self.headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            self.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode())

    def event(self, message: Wire, *, event_id: str | None = None) -> None:
        self.open_stream()
        if not self.over:
            name = f"id: {event_id}\n" if event_id is not None else ""
            self.chunk(f"{name}data: {json.dumps(message)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        if not self.over:
            self.over = True
            self.write(b"0\r\n\r\n")

    def answer(self, message: Wire) -> None:
        """The response, in the form that this answer has by now."""
        if self.is_stream:
            self.event(message)
            self.end_stream()
        else:
            self.send(
                self.status, json.dumps(message, separators=(",", ":")).encode(), {"content-type": "application/json"}
            )


class HttpConnection(asyncio.Protocol):
    """One HTTP connection of the upstream; requests on it are answered one after the other."""

    def __init__(self, opened: Callable[[End], None], request: Requested) -> None:
        self._opened = opened
        self._request = request

    def connection_made(self, transport: Any) -> None:
        self._end: End = transport
        self._opened(transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body, self._headers = b"", dict[str, str]()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body, self._headers = b"", {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        reply = HttpReply(self._end)
        self._request(method, self._headers, self._body, reply)
