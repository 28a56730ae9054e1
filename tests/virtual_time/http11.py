"""A minimal HTTP/1.1 reader for what the gateway writes to in-memory streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Wire = dict[str, Any]


@dataclass(slots=True)
class Reply:
    """One HTTP answer: status, headers (lower case), body as it came, and every JSON-RPC message in it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    messages: list[Wire] = field(default_factory=list)
    last_event_id: str = ""
    retry_ms: int | None = None

    @property
    def last(self) -> Wire:
        """The response itself, without the messages before it."""
        return self.messages[-1] if self.messages else {}

    @property
    def result(self) -> Wire:
        assert "result" in self.last, f"wanted a result, got HTTP {self.status} {self.last or self.body[:500]!r}"
        found: Wire = self.last["result"]
        return found

    @property
    def error(self) -> Wire:
        assert "error" in self.last, f"wanted an error, got HTTP {self.status} {self.last or self.body[:500]!r}"
        found: Wire = self.last["error"]
        return found

    @property
    def text(self) -> str:
        """The text of a tool's result."""
        return "\n".join(block["text"] for block in self.result["content"] if block["type"] == "text")

    @property
    def notes(self) -> list[Wire]:
        """The notifications that came before the response."""
        return [message for message in self.messages if "method" in message and "id" not in message]

    @property
    def cookies(self) -> list[str]:
        """Every `set-cookie` header; `headers` has the last one."""
        return self.headers.get(EVERY_COOKIE, "").split("\n") if EVERY_COOKIE in self.headers else []

    def json(self) -> Any:
        return json.loads(self.body)


EVERY_COOKIE = "every set-cookie"


def request_bytes(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method not in ("GET", "DELETE"):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if name == "set-cookie":
            before = headers.get(EVERY_COOKIE)
            headers[EVERY_COOKIE] = value if before is None else f"{before}\n{value}"
        headers[name] = value
    return int(first.split(" ", 2)[1]), headers


async def body_parts(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    elif "content-length" in headers:
        if size := int(headers["content-length"]):
            yield await reader.readexactly(size)
    else:
        while part := await reader.read(65536):
            yield part


class EventReader:
    """Cuts a text/event-stream into events and keeps id and retry."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._rest = b""

    def feed(self, part: bytes) -> list[Wire]:
        self._rest += part
        *blocks, self._rest = self._rest.replace(b"\r\n", b"\n").split(b"\n\n")
        return [message for block in blocks if (message := self._message(block)) is not None]

    def _message(self, block: bytes) -> Wire | None:
        data = []
        for line in block.decode().split("\n"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "id":
                self._reply.last_event_id = value
            elif name == "retry":
                self._reply.retry_ms = int(value)
        return json.loads("\n".join(data)) if any(data) else None
