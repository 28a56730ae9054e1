"""HTTP by hand over a socket, for requests that no client library can send: one request for each connection."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

WITHIN_S = 120


@dataclass(slots=True)
class BareReply:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Bare:
    port: int

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, host: str = "127.0.0.1", **more: str
    ) -> BareReply:
        """One request with the headers that MCP requires, and `more` of them (`a_b` is `a-b`)."""
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
        return await self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    async def send(self, *parts: bytes) -> BareReply:
        """Exactly these bytes; the reply is all that comes until the other end hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(WITHIN_S):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                return parsed(await reader.read())
        finally:
            writer.close()


def parsed(raw: bytes) -> BareReply:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return BareReply(int(first.split(" ")[1]), headers, body)


def initialize(version: str = "2025-11-25", number: int = 1) -> bytes:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "initialize", "params": params}).encode()
