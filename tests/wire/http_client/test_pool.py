"""The pool: waiting for a connection, cancellation, and leaks."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
from tests.wire.http_client.raw_server import (
    HEAD,
    OK,
    answering,
    answering_then_closing,
    forever,
    read_request,
    serving,
    until,
)

from taskgate.mcp.http import HttpClient, HttpFailure, Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


async def test_cancellation_closes_connection() -> None:
    client = HttpClient()
    async with serving(forever) as server:
        target = Target.parse(server.url)
        calls = [asyncio.create_task(client.exchange(target, body=b"{}", deadline_s=60)) for _ in range(20)]
        await until(lambda: server.open_now == 20)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)
        await until(lambda: server.open_now == 0 and client.open_connections(target.origin) == 0)
        await client.close()


async def test_cancellation_while_connecting_or_waiting_leaks_nothing() -> None:
    client = HttpClient(max_connections_per_origin=2)
    async with serving(forever) as server:
        target = Target.parse(server.url)
        for _ in range(20):
            calls = [asyncio.create_task(client.exchange(target, body=b"{}", deadline_s=60)) for _ in range(6)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        await until(lambda: server.open_now == 0 and client.open_connections(target.origin) == 0)
        await client.close()


async def test_waiting_calls_are_served_in_order() -> None:
    client = HttpClient(max_connections_per_origin=2)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            writer.write(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    finished: list[bytes] = []

    async def call(number: int) -> None:
        finished.append((await client.exchange(target, body=b"%d" % number, deadline_s=10)).body)

    async with serving(script) as server:
        target = Target.parse(server.url)
        await asyncio.gather(*(call(number) for number in range(100)))
        assert sorted(finished, key=int) == [b"%d" % number for number in range(100)]
        assert server.connections == 2
        await client.close()


async def test_broken_connection_frees_its_place_for_waiting_call() -> None:
    client = HttpClient(max_connections_per_origin=1)
    async with serving(answering_then_closing(b"")) as server:
        target = Target.parse(server.url)
        calls = [client.exchange(target, body=b"{}", deadline_s=5) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, HttpFailure) and result.status is None for result in results), results
        assert server.connections == 5
        await client.close()


async def test_every_address_of_a_name_is_tried() -> None:
    client = HttpClient()
    async with serving(answering(OK)) as server:
        target = Target.parse(f"http://localhost:{server.port}/mcp")
        assert (await client.exchange(target, body=b"{}", deadline_s=5)).status == 200
        await client.close()


async def test_connection_assigned_to_cancelled_call_goes_to_next() -> None:
    """Callers leave at every moment around the reply that frees the one connection; the last one is always served."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)

    async with serving(script) as server:
        target = Target.parse(server.url)
        for turns in range(25):
            client = HttpClient(max_connections_per_origin=1)
            calls = [asyncio.create_task(client.exchange(target, body=b"{}", deadline_s=5)) for _ in range(4)]
            for _ in range(turns):
                await asyncio.sleep(0)
            calls[1].cancel()
            calls[2].cancel()
            await asyncio.wait(calls)
            assert calls[3].result().status == 200
            await client.close()


async def test_many_exchanges_leak_no_descriptor_or_task() -> None:
    client = HttpClient()
    async with serving(answering(*[OK] * 5, b"")) as server:
        before = len(os.listdir("/dev/fd"))
        target = Target.parse(server.url)
        for _ in range(1000):
            with _ignoring_failures():
                await client.exchange(target, body=b"{}", deadline_s=0.002)
        await client.close()
        await until(lambda: server.open_now == 0)
    gc.collect()
    await until(lambda: len(os.listdir("/dev/fd")) <= before)
    assert asyncio.all_tasks() == {asyncio.current_task()}


class _ignoring_failures:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, HttpFailure)
