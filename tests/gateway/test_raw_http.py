"""Raw HTTP over a socket: requests that no client library can send, although some real clients send them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.harness.gateway import Gateway
from tests.harness.raw_client import META as PREFIX

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]

WITHIN_S = 120
META = {f"{PREFIX}protocolVersion": "2026-07-28", f"{PREFIX}clientCapabilities": {}}


def ask(number: int, method: str = "tools/call", name: str = "new__mirror") -> bytes:
    params = {"name": name, "arguments": {"value": number}, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def post(
    body: bytes, *more: str, line: str = "POST /mcp HTTP/1.1", length: int | None = None, chunked: bool = False
) -> bytes:
    head = [
        line,
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "Mcp-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        "Mcp-Name: new__mirror",
        *more,
    ]
    if chunked:
        head.append("Transfer-Encoding: chunked")
        halves = body[: len(body) // 2], body[len(body) // 2 :]
        body = b"".join(b"%x\r\n%b\r\n" % (len(half), half) for half in (*halves, b""))
    else:
        head.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class RawConnection:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, gateway: Gateway) -> RawConnection:
        return cls(*await asyncio.open_connection("127.0.0.1", gateway.port))

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(WITHIN_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body

    async def result(self) -> Any:
        status, _, body = await self.receive()
        assert status == 200, body
        return json.loads(body)["result"]

    async def is_closed(self) -> bool:
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.read() == b""


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    health = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    await line.send(post(ask(1)) + health + post(ask(2)) + post(ask(3)))
    assert (await line.result())["vendor/extra"] == 1
    assert json.loads((await line.receive())[2]) == {"status": "ok"}
    assert (await line.result())["vendor/extra"] == 2
    assert (await line.result())["vendor/extra"] == 3


async def test_a_body_may_come_in_pieces_and_in_chunks(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    whole = post(ask(4))
    await line.send(whole[:30], whole[30:200], whole[200:])
    assert (await line.result())["vendor/extra"] == 4
    await line.send(post(ask(5), chunked=True))
    assert (await line.result())["vendor/extra"] == 5


async def test_a_head_belongs_to_its_own_body(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    for number in (11, 12, 13_000_000):
        await line.send(post(ask(number)))
        assert (await line.result())["vendor/extra"] == number
    whole = post(ask(14))
    await line.send(whole[:-5])
    await line.send(whole[-5:])
    assert (await line.result())["vendor/extra"] == 14
    await line.send(post(ask(15)) + post(ask(16)))
    assert [(await line.result())["vendor/extra"] for _ in range(2)] == [15, 16]
    await line.send(post(ask(17)).replace(b"Mcp-Name: new__mirror", b"Mcp-Name: new__mirroR"))
    assert (await line.receive())[0] == 400
    await line.send(post(ask(18)))
    assert (await line.result())["vendor/extra"] == 18
    await line.send(post(ask(19), length=len(ask(19)) - 1))
    assert b"not acceptable JSON" in (await line.receive())[2]
    assert b"Invalid HTTP request" in (await line.receive())[2]
    assert await line.is_closed()


async def test_space_around_the_value_of_a_header_does_not_belong_to_it(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    for number in (31, 32):
        spaced = (
            post(ask(number))
            .replace(b"Content-Length: ", b"Content-Length: \t")
            .replace(b"\r\n\r\n", b" \t\r\n\r\n", 1)
        )
        await line.send(
            spaced.replace(b"Host: 127.0.0.1", b"Host:  127.0.0.1 ").replace(b"__mirror\r", b"__mirror  \r")
        )
        assert (await line.result())["vendor/extra"] == number


async def test_the_rest_of_a_body_is_no_part_of_the_next_head(gateway: Gateway) -> None:
    """The end of a body arrives together with the next request: that data does not begin with a head."""
    line = await RawConnection.open(gateway)
    body = ask(21)
    head = post(body, "Expect: 100-continue").removesuffix(body)
    await line.send(head)
    assert (await line.receive())[0] == 100
    await line.send(body + post(ask(22)))
    assert [(await line.result())["vendor/extra"] for _ in range(2)] == [21, 22]
    await line.send(body + post(ask(23)))
    assert (await line.receive())[0] == 400


async def test_an_absolute_request_target_is_accepted(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    await line.send(post(ask(6), line=f"POST {gateway.url} HTTP/1.1"))
    assert (await line.result())["vendor/extra"] == 6


async def test_an_upgrade_request_is_answered_in_http_1_1(gateway: Gateway) -> None:
    """Java's HTTP client requests HTTP/2 in this way on each new connection."""
    line = await RawConnection.open(gateway)
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")
    await line.send(post(ask(7), *upgrade))
    assert (await line.result())["vendor/extra"] == 7
    await line.send(post(ask(8)))
    assert (await line.result())["vendor/extra"] == 8


@pytest.mark.parametrize("options", ["close, Upgrade", "Upgrade,CLOSE", "upgrade, http2-settings, close"])
async def test_an_upgrade_request_that_closes_is_the_last_one(gateway: Gateway, options: str) -> None:
    line = await RawConnection.open(gateway)
    last = post(ask(7), f"Connection: {options}", "Upgrade: h2c")
    await line.send(last + post(ask(8)))
    status, headers, body = await line.receive()
    assert (status, headers["connection"]) == (200, "close")
    assert json.loads(body)["result"]["vendor/extra"] == 7
    async with asyncio.timeout(WITHIN_S):
        assert b"HTTP/1.1 200" not in await line.reader.read()


async def test_an_upgrade_request_of_http_1_0_stays_one(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    upgrade = ("Connection: Upgrade", "Upgrade: h2c")
    await line.send(post(ask(7), *upgrade, line="POST /mcp HTTP/1.0"))
    assert (await line.receive())[1]["connection"] == "close"
    assert await line.is_closed()


ODD_LINES = [
    ("POST /mcp HTTP/2.0", 505),
    ("POST /mcp HTTP/0.9", 505),
    ("POST /mcp", 505),
    ("POST  /mcp HTTP/1.1", 400),
    ("POST /mcp  HTTP/1.1", 400),
    ("SOURCE /mcp ICE/1.0", 400),
    ("POST http://evil.example/mcp HTTP/1.1", 400),
    ("POST http://127.0.0.1@evil.example/mcp HTTP/1.1", 400),
    ("POST ftp://127.0.0.1/mcp HTTP/1.1", 400),
]


@pytest.mark.parametrize(("text", "status"), ODD_LINES)
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("cut", [None, 5, 12])
async def test_an_odd_request_line_is_refused(
    gateway: Gateway, text: str, status: int, before: int, cut: int | None
) -> None:
    """Alone and after others, in one read and in several. Requests before it get their own responses."""
    line, numbers = await RawConnection.open(gateway), range(40, 40 + before)
    good, odd = b"".join(post(ask(number)) for number in numbers), post(ask(50), line=text)
    if cut is None:
        await line.send(good + odd)
    else:
        await line.send(good + odd[:cut])
        await asyncio.sleep(0.1)
        await line.send(odd[cut:])
    assert [(await line.result())["vendor/extra"] for _ in numbers] == list(numbers)
    assert (await line.receive())[0] == status
    assert await line.is_closed()


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_requests_may_come_in_pieces_of_any_size(gateway: Gateway, size: int) -> None:
    """Also empty lines before a request line, as old clients send them, and heads that begin within a read."""
    line, numbers = await RawConnection.open(gateway), range(60, 64)
    sent = b"".join(b"\r\n" * (number % 2) + post(ask(number), "Extra: POST  /mcp HTTP/1.1") for number in numbers)
    for at in range(0, len(sent), size):
        await line.send(sent[at : at + size])
        await asyncio.sleep(0)
    assert [(await line.result())["vendor/extra"] for _ in numbers] == list(numbers)


async def test_expect_100_continue_is_answered(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    body = ask(9)
    await line.send(post(b"", "Expect: 100-continue", length=len(body)))
    assert (await line.receive())[0] == 100
    await line.send(body)
    assert (await line.result())["vendor/extra"] == 9


async def test_a_body_with_a_too_large_content_length_is_refused_at_once(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    await line.send(post(b"", "Expect: 100-continue", length=100_000_000))
    status, _, body = await line.receive()
    assert (status, json.loads(body)["error"]["data"]["error_type"]) == (413, "request_too_large")


async def test_a_chunked_body_is_refused_when_it_exceeds_the_limit(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    head = post(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    await line.send(head, *[b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))] * 5)
    assert (await line.receive())[0] == 413


@pytest.mark.parametrize("more", [("Connection: close",), ()])
async def test_a_connection_is_kept_alive_on_request_only(gateway: Gateway, more: tuple[str, ...]) -> None:
    line = await RawConnection.open(gateway)
    version = "1.1" if more else "1.0"
    await line.send(post(ask(10), *more, line=f"POST /mcp HTTP/{version}"))
    status, headers, _ = await line.receive()
    assert (status, headers["connection"]) == (200, "close")
    assert await line.is_closed()


async def test_bytes_that_are_not_http_get_a_400(gateway: Gateway) -> None:
    line = await RawConnection.open(gateway)
    await line.send(b"\x16\x03\x01 hello\r\n\r\n")
    assert (await line.receive())[0] == 400
    assert await line.is_closed()


LARGE_HEADER = "Extra: " + "x" * 70_000
BAD_CHUNKS = post(ask(29), chunked=True).replace(b"\r\n0\r\n", b"\r\nnone\r\n")


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (b"no http\r\n\r\n", 400),
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n", 400),
        (post(ask(29), LARGE_HEADER), 431),
        (BAD_CHUNKS, 400),
    ],
    ids=["no request", "CONNECT", "large header", "bad body"],
)
@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("in_one_read", [True, False])
async def test_requests_before_a_bad_one_get_their_own_responses(
    gateway: Gateway, bad: bytes, status: int, before: int, in_one_read: bool
) -> None:
    line, numbers = await RawConnection.open(gateway), range(30, 30 + before)
    requests = b"".join(post(ask(number)) for number in numbers)
    await line.send(*([requests + bad] if in_one_read else [requests, bad]))
    await line.send(post(ask(99)))
    assert [(await line.result())["vendor/extra"] for _ in numbers] == list(numbers)
    assert (await line.receive())[0] == status
    assert await line.is_closed()


async def test_a_disconnect_within_a_body_does_not_affect_others(gateway: Gateway) -> None:
    gone, stays = await RawConnection.open(gateway), await RawConnection.open(gateway)
    await gone.send(post(ask(11))[:-20])
    gone.writer.close()
    await stays.send(post(ask(12)))
    assert (await stays.result())["vendor/extra"] == 12
