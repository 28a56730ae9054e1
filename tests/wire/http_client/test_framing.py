"""Framing of requests and replies: lengths, chunks, interim replies, connection close, trailing bytes."""

from __future__ import annotations

import asyncio

import pytest
from tests.wire.http_client.raw_server import (
    HEAD,
    OK,
    STREAM,
    answering,
    answering_then_closing,
    chunk,
    read_request,
    serving,
)

from taskgate.mcp.http import HttpClient, HttpHead, Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")

CLOSES = (
    HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"\r\n{}",
)


@pytest.mark.parametrize(
    ("wire", "status", "body"),
    [
        pytest.param(OK, 200, b"{}", id="content-length"),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 200, b"{}", id="chunked"
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\ntrailer: 1\r\n\r\n", 200, b"{}", id="trailer"
        ),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="no content"),
        pytest.param(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", 202, b"", id="accepted"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nx: 1\r\n\r\n" + OK, 200, b"{}", id="interim"),
        pytest.param(HEAD + b"content-encoding: identity\r\ncontent-length: 2\r\n\r\n{}", 200, b"{}", id="identity"),
        pytest.param(STREAM + chunk(b"data: 1\n\n") + chunk(b""), 200, b"data: 1\n\n", id="stream without a reader"),
    ],
)
async def test_every_framing_is_read_and_connection_is_reused(wire: bytes, status: int, body: bytes) -> None:
    client = HttpClient()
    async with serving(answering(wire, wire)) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            reply = await client.exchange(target, body=b"{}", deadline_s=5)
            assert (reply.status, reply.body, reply.request_sent, reply.stopped) == (status, body, True, False)
        assert server.connections == 1
        await client.close()


@pytest.mark.parametrize("wire", CLOSES, ids=["connection: close", "HTTP/1.0", "until close"])
async def test_next_call_opens_new_connection_after_reply_that_closes(wire: bytes) -> None:
    client = HttpClient()
    async with serving(answering_then_closing(wire)) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            reply = await client.exchange(target, body=b"{}", deadline_s=5)
            assert (reply.status, reply.body) == (200, b"{}")
        assert server.connections == 2
        await client.close()


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad", b"garbage\r\n", b"H"])
async def test_bytes_after_reply_are_not_read_as_next_reply(garbage: bytes) -> None:
    client = HttpClient()
    async with serving(answering(OK + garbage, OK)) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            assert (await client.exchange(target, body=b"{}", deadline_s=5)).body == b"{}"
        assert server.connections == 2
        await client.close()


async def test_request_bytes_match_configuration() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url + "?a=ä b", {"Authorization": "Bearer x"})
        await client.exchange(target, b"POST", [(b"Mcp-Session-Id", b"1")], b"{}", deadline_s=5)
        await client.exchange(target, b"GET", deadline_s=5)
        await client.close()
    fixed = b"Host: 127.0.0.1:%d\r\nUser-Agent: taskgate\r\nAuthorization: Bearer x\r\n" % server.port
    assert seen == [
        (
            b"POST /mcp?a=%C3%A4%20b HTTP/1.1\r\n" + fixed + b"Mcp-Session-Id: 1\r\nContent-Length: 2\r\n\r\n",
            b"{}",
        ),
        (b"GET /mcp?a=%C3%A4%20b HTTP/1.1\r\n" + fixed + b"\r\n", b""),
    ]


async def test_repeated_header_has_first_value_and_full_list() -> None:
    heads: list[HttpHead] = []
    client = HttpClient()
    async with serving(answering(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\ncontent-length: 0\r\n\r\n")) as server:
        reply = await client.exchange(Target.parse(server.url), deadline_s=5, on_head=heads.append)
        assert reply.headers[b"x-a"] == b"1"
        assert reply.header_list[:2] == [(b"x-a", b"1"), (b"x-a", b"2")]
        assert [head.status for head in heads] == [200]
        await client.close()
