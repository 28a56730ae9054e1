"""Requests that follow one another on one connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time
from tests.virtual_time.http11 import body_parts, read_head, request_bytes

from taskgate.inbound.http.post_handler import PostHandler
from taskgate.inbound.http.post_request import Post

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}


def ping(headers: dict[str, str]) -> bytes:
    return request_bytes("POST", "/mcp", headers, json.dumps(PING, separators=(",", ":")).encode())


async def status_of(streams: Streams, request: bytes) -> tuple[int, Any]:
    reader, writer = streams
    writer.write(request)
    status, headers = await read_head(reader)
    body = b"".join([part async for part in body_parts(reader, headers)])
    return status, json.loads(body) if body else None


async def session_headers(gate: Gateway) -> dict[str, str]:
    caller = await gate.caller("2025")
    return {
        "host": "127.0.0.1",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": "2025-11-25",
        "mcp-session-id": caller.headers["mcp-session-id"],
    }


async def answered_thrice(streams: Streams, request: bytes) -> None:
    for _ in range(3):
        assert await status_of(streams, request) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})


@virtual_time
async def test_a_reload_applies_to_the_next_request_of_an_open_connection() -> None:
    async with Gateway({}, {"s": Upstream("2025")}) as gate:
        request, streams = ping(await session_headers(gate)), await gate.connect()
        await answered_thrice(streams, request)
        await gate.reload({"tokens": [{"id": "ann", "sha256": "ab" * 32}]})
        assert (await status_of(streams, request))[0] == 401


@virtual_time
async def test_a_request_is_not_answered_before_all_that_arrived_with_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the connection may be handed over depends on what else has arrived."""
    waiting = list[int]()
    read = PostHandler._read

    def observed(self: PostHandler, post: Post) -> Any:
        waiting.append(len(post.connection.pipeline))  # type: ignore[attr-defined]
        return read(self, post)

    monkeypatch.setattr(PostHandler, "_read", observed)
    async with Gateway({}, {"s": Upstream("2025")}) as gate:
        request = ping(await session_headers(gate))
        waiting.clear()
        reader, writer = await gate.connect()
        writer.write(request * 3)
        for _ in range(3):
            status, headers = await read_head(reader)
            assert status == 200
            assert b"".join([part async for part in body_parts(reader, headers)])
        writer.close()
    assert waiting == [2, 1, 0]


@virtual_time
async def test_replies_come_in_the_order_of_the_requests() -> None:
    """Also if the second request arrives while the first one is being answered, and its reply is ready at once."""
    server = Upstream("2025")

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(5)
        return "done"

    async with Gateway({}, {"s": server}) as gate:
        headers, streams = await session_headers(gate), await gate.connect()
        await answered_thrice(streams, ping(headers))
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "s__slow", "arguments": {}}}
        reader, writer = streams
        writer.write(request_bytes("POST", "/mcp", headers, json.dumps(call).encode()))
        await gate.advance(1)
        writer.write(ping(headers))
        ids = []
        for _ in range(2):
            _, reply_headers = await read_head(reader)
            body = b"".join([part async for part in body_parts(reader, reply_headers)])
            ids.append(json.loads(body)["id"])
        assert ids == [2, 1]
