"""Idle connections: reuse, expiry, and connections closed by the peer."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from tests.wire.http_client.raw_server import HEAD, OK, answering, read_request, serving, until

from taskgate.mcp.http import HttpClient, Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


async def test_idle_connection_closed_by_server_is_not_reused() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await writer.drain()

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url)
        for turn in range(3):
            assert (await client.exchange(target, body=b"{}", deadline_s=5)).status == 200
            await until(lambda turn=turn: server.open_now == 0 and server.connections == turn + 1)  # type: ignore[misc]
        assert server.connections == 3
        await client.close()


FOREIGN = HEAD + b'content-length: 9\r\n\r\n{"for":0}'


@pytest.mark.parametrize("foreign", [FOREIGN, FOREIGN[:12], b"\r\n"])
async def test_idle_connection_with_unsolicited_bytes_is_closed(foreign: bytes) -> None:
    sent = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await sent.wait()
        writer.write(foreign)
        await reader.read()

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url)
        for turn in range(2):
            assert (await client.exchange(target, body=b"{}", deadline_s=120)).body == b"{}"
            sent.set()
            await until(lambda: client.open_connections(target.origin) == 0)
            assert server.connections == turn + 1
        await client.close()


def test_unsolicited_reply_is_not_the_reply_to_the_next_request() -> None:
    """It has arrived while the event loop was busy, so that nothing has read it when the next request is sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    answered, sent = threading.Event(), threading.Event()

    def serve() -> None:
        for number in range(2):
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(OK)
            if number == 0:
                answered.wait(120)
                connection.sendall(FOREIGN)
                sent.set()
            kept.append(connection)

    async def exchanges() -> None:
        client = HttpClient()
        target = Target.parse(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        assert (await client.exchange(target, body=b"{}", deadline_s=120)).body == b"{}"
        answered.set()
        sent.wait(120)
        assert (await client.exchange(target, body=b"{}", deadline_s=120)).body == b"{}"
        await client.close()

    kept: list[socket.socket] = []
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    asyncio.run(exchanges())
    for connection in (listener, *kept):
        connection.close()


async def test_idle_connection_is_closed_after_idle_time() -> None:
    client = HttpClient(idle_s=0.1)
    async with serving(answering(OK, OK)) as server:
        target = Target.parse(server.url)
        await client.exchange(target, body=b"{}", deadline_s=5)
        assert client.idle_connections(target.origin) == 1
        await until(lambda: client.open_connections(target.origin) == 0)
        await client.close()


async def test_expired_idle_connection_is_not_reused_after_blocked_loop() -> None:
    client = HttpClient(idle_s=0.1)
    async with serving(answering(OK, OK)) as server:
        target = Target.parse(server.url)
        await client.exchange(target, body=b"{}", deadline_s=5)
        time.sleep(0.15)  # Nothing runs meanwhile, no timer either.
        await client.exchange(target, body=b"{}", deadline_s=5)
        assert server.connections == 2
        await client.close()


async def test_keep_alive_timeout_of_peer_is_respected() -> None:
    client = HttpClient(idle_s=60)
    reply = HEAD + b"keep-alive: timeout=1, max=5\r\ncontent-length: 2\r\n\r\n{}"
    async with serving(answering(reply, reply)) as server:
        target = Target.parse(server.url)
        await client.exchange(target, body=b"{}", deadline_s=5)
        await until(lambda: client.open_connections(target.origin) == 0)
        await client.close()


async def test_surplus_connections_are_closed() -> None:
    client = HttpClient(max_idle_per_origin=1)
    async with serving(answering(OK, OK)) as server:
        target = Target.parse(server.url)
        await asyncio.gather(*(client.exchange(target, body=b"{}", deadline_s=5) for _ in range(5)))
        assert server.connections == 5
        await until(lambda: server.open_now == 1)
        assert client.idle_connections(target.origin) == 1
        await client.close()
