"""Callers that are many, slow or silent cost the others nothing: real sockets, all on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.gateway.test_answers_on_other_streams import WANDERING
from tests.gateway.test_lifecycle import http_server, mirror
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.narrow import transport_of
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import RawClient

pytestmark = pytest.mark.timeout(120)
IDLE = 1000
SLOW_READERS = 10
BIG = "x" * 1_500_000
ANSWER_S = 120.0


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


async def answers_soon(gateway: Gateway) -> None:
    async with asyncio.timeout(ANSWER_S), RawClient(gateway.url) as caller:
        assert (await caller.call("a__mirror", {"value": 1})).result["vendor/extra"] == 1


async def test_a_reader_that_stops_is_dropped_and_a_slow_one_gets_the_whole_response(tmp_path: Path) -> None:
    port = free_port()
    limits = {"body_timeout": "6s"}
    async with (
        mirror(port),
        running_gateway({"schema": 1, "servers": {"a": http_server(port)}, "limits": limits}, tmp_path) as gateway,
        RawClient(gateway.url) as caller,
    ):
        await answers_soon(gateway)
        params = {"name": "a__mirror", "arguments": {"value": BIG * 2}}
        heads = "".join(f"{name}: {value}\r\n" for name, value in caller.headers.items())

        async def share_read(number: int, pauses: int, pause_s: float, window: int) -> float:
            """What part of the answer arrived before the line was cut or all was there."""
            body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
            kind = "content-type: application/json"
            head = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\n{heads}{kind}\r\ncontent-length: {len(body)}\r\n\r\n"
            loop, seen = asyncio.get_running_loop(), b""
            with socket.socket() as line:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
                line.setblocking(False)
                await loop.sock_connect(line, ("127.0.0.1", gateway.port))
                await loop.sock_sendall(line, head.encode() + body)
                whole = math.inf
                with contextlib.suppress(ConnectionResetError):
                    while len(seen) < whole and (part := await asyncio.wait_for(loop.sock_recv(line, 1 << 20), 120)):
                        seen += part
                        text, found, _ = seen.partition(b"\r\n\r\n")
                        if found and whole == math.inf:
                            whole = len(text) + 4 + int(text.lower().partition(b"content-length: ")[2].split()[0])
                        pauses -= 1
                        await asyncio.sleep(pause_s if pauses >= 0 else 0)
            return len(seen) / whole

        stopped, slow = await asyncio.gather(share_read(7, 1, 12, 4_096), share_read(8, 12, 0.5, 262_144))
        assert stopped < 0.9
        assert slow == 1
        await answers_soon(gateway)


@pytest.mark.fresh_interpreter
async def test_a_thousand_idle_connections_delay_no_caller_and_are_dropped(tmp_path: Path) -> None:
    port = free_port()
    async with (
        mirror(port),
        running_gateway({"schema": 1, "servers": {"a": http_server(port)}}, tmp_path) as gateway,
        AsyncExitStack() as stack,
    ):
        await answers_soon(gateway)
        before = resident_mb(gateway.pid)
        opened = []
        for _ in range(IDLE):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            stack.callback(writer.close)
            opened.append(reader)
        await answers_soon(gateway)
        assert resident_mb(gateway.pid) - before < 60
        # A silent connection is closed after the timeout for headers, whether it has sent a part of them or not.
        async with asyncio.timeout(120):
            assert {await reader.read() for reader in opened} == {b""}
        await answers_soon(gateway)


async def test_paused_readers_delay_no_caller_and_get_everything_later(tmp_path: Path) -> None:
    port = free_port()
    async with mirror(port), running_gateway({"schema": 1, "servers": {"a": http_server(port)}}, tmp_path) as gateway:
        async with RawClient(gateway.url) as caller:
            peers = [await _sends_and_does_not_read(gateway, caller.headers, number) for number in range(SLOW_READERS)]
            await answers_soon(gateway)
            for reader, writer in peers:
                transport_of(writer).resume_reading()
                async with asyncio.timeout(ANSWER_S):
                    received = await reader.readuntil(b"\r\n0\r\n\r\n")
                assert received.count(b'"notifications/vendor/mirror"') == 1
                assert received.endswith(b"\r\n0\r\n\r\n")
                assert received.count(b"x" * 60_000) >= 2 * 25
                writer.close()
        await answers_soon(gateway)


async def _sends_and_does_not_read(
    gateway: Gateway, headers: dict[str, str], number: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One POST whose answer is an event stream of some megabytes, into a small buffer that is not read."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", gateway.port))
    # The limit applies when the reader reads again; before that nothing is dropped.
    reader, writer = await asyncio.open_connection(sock=small, limit=64 * 1024 * 1024)
    transport_of(writer).pause_reading()
    params = {"name": "a__notify", "arguments": {"value": BIG}}
    body = json.dumps({"jsonrpc": "2.0", "id": f"slow-{number}", "method": "tools/call", "params": params}).encode()
    head = {**headers, "host": "localhost", "content-type": "application/json", "accept": "text/event-stream"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def _listens(
    gateway: Gateway, headers: dict[str, str], buffer: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A session's own stream, through a socket with a receive buffer of that size."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", gateway.port))
    reader, writer = await asyncio.open_connection(sock=own, limit=64 * 1024 * 1024)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"GET /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{lines}\r\n".encode())
    await writer.drain()
    async with asyncio.timeout(ANSWER_S):
        assert b" 200 " in await reader.readline()
    return reader, writer


async def _hears(reader: asyncio.StreamReader, notes: int) -> None:
    async with asyncio.timeout(ANSWER_S):
        for _ in range(notes):
            await reader.readuntil(b"notifications/vendor/flood")


@pytest.mark.fresh_interpreter
async def test_an_unread_session_stream_is_dropped_without_effect_on_others(tmp_path: Path) -> None:
    """Some megabytes fit into the buffers of the kernel; what comes then is kept up to the limit, and no further."""
    port, rounds, notes, size = free_port(), 80, 10, 40_000
    config = {"schema": 1, "servers": {"far": http_server(port)}}
    async with (
        running([sys.executable, WANDERING, str(port)], listening(port)),
        running_gateway(config, tmp_path) as gateway,
        RawClient(gateway.url) as slow,
        RawClient(gateway.url) as prompt,
        AsyncExitStack() as stack,
    ):
        for caller in (slow, prompt):
            await caller.call("far__plain", {})
        unread, slow_writer = await _listens(gateway, slow.headers, 64 * 1024)
        transport_of(slow_writer).pause_reading()
        messages, prompt_writer = await _listens(gateway, prompt.headers, 4 * 1024 * 1024)
        for writer in (slow_writer, prompt_writer):
            stack.callback(writer.close)
        before = resident_mb(gateway.pid)
        for _ in range(rounds):
            await prompt.call("far__flood", {"count": notes, "bytes": size})
            await _hears(messages, notes)
        assert resident_mb(gateway.pid) - before < 24
        transport_of(slow_writer).resume_reading()
        async with asyncio.timeout(ANSWER_S):
            received = await _everything(unread)
        # Dropped in the middle: no proper end that would look as if nothing were missing.
        assert 0 < received.count(b"notifications/vendor/flood") < rounds * notes
        assert not received.endswith(b"\r\n0\r\n\r\n")
        # Only the stream has ended: the session continues, and may listen again.
        again, again_writer = await _listens(gateway, slow.headers, 4 * 1024 * 1024)
        stack.callback(again_writer.close)
        assert "result" in (await slow.call("far__flood", {"count": 1, "bytes": 10})).reply
        await _hears(again, 1)


async def _everything(reader: asyncio.StreamReader) -> bytes:
    """Until the peer hangs up, politely or not."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(1 << 20):
            parts.append(part)
    return b"".join(parts)


async def test_sessions_over_the_limit_are_refused_and_the_others_continue(tmp_path: Path) -> None:
    port = free_port()
    config = {"schema": 1, "servers": {"a": http_server(port)}, "limits": {"sessions": 3}}
    async with mirror(port), running_gateway(config, tmp_path) as gateway, AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(RawClient(gateway.url)) for _ in range(3)]
        one_more = RawClient(gateway.url)
        stack.push_async_callback(one_more.http.aclose)
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        refused = await one_more.post(opening)
        assert refused.error["data"]["error_type"] == "overloaded"
        assert all([(await caller.call("a__mirror", {"value": 2})).result["vendor/extra"] == 2 for caller in callers])
        await callers[0].http.delete(gateway.url, headers=callers[0].headers)
        assert "result" in (await one_more.post(opening)).reply
