"""Event streams: delivery, early end by the listener, and streams that do not end."""

from __future__ import annotations

import asyncio

import pytest
from tests.wire.http_client.raw_server import STREAM, chunk, read_request, serving, until

from taskgate.mcp.http import HttpClient, SseEvent, Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


async def test_event_is_delivered_when_it_arrives() -> None:
    proceed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(b"id: 1\ndata:\n\n"))
        await proceed.wait()
        writer.write(chunk(b"data: 2\n\n") + chunk(b""))

    def listen(event: SseEvent) -> None:
        seen.append(event)
        proceed.set()

    seen: list[SseEvent] = []
    client = HttpClient()
    async with serving(script) as server:
        reply = await client.exchange(Target.parse(server.url), deadline_s=5, on_event=listen)
        assert seen == [SseEvent(b"", id="1"), SseEvent(b"2")]
        assert (reply.status, reply.body, reply.stopped) == (200, b"", False)
        await client.close()


async def test_listener_can_end_stream_and_connection_is_reused() -> None:
    answered = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await read_request(reader)
            writer.write(STREAM + chunk(b"data: 1\n\n"))
            await answered.wait()
            answered.clear()
            writer.write(chunk(b"data: late\n\n") + chunk(b""))
        await reader.read(1)

    seen: list[bytes] = []

    def listen(event: SseEvent) -> bool:
        seen.append(event.data)
        return True

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            reply = await client.exchange(target, deadline_s=5, on_event=listen)
            assert reply.stopped
            answered.set()
            await until(lambda: client.idle_connections(target.origin) == 1)
        assert (seen, server.connections) == ([b"1", b"1"], 1)
        await client.close()


@pytest.mark.parametrize("rest", [chunk(b"x" * 100_000), b""], ids=["endless talk", "endless silence"])
async def test_stream_that_continues_after_its_result_is_closed(rest: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.05)
        writer.write(rest)
        await reader.read(1)

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url)
        await client.exchange(target, deadline_s=5, on_event=lambda event: True)
        await until(lambda: server.open_now == 0 and server.connections == 1)
        assert client.open_connections(target.origin) == 0
        await client.close()
