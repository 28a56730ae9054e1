"""An upstream's answer may come on another stream than its call's own; it is assigned by its id (2025-11-25, transports)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.gateway.test_broken_upstreams import verdict
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import Answer, RawClient

from taskgate import clock

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]
WANDERING = Path(__file__).parent.parent / "peers" / "stream_switching_server.py"
RETRY_S = 0.3


@asynccontextmanager
async def wandering_gateway(timeout_s: int = 60) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as stack:
        port = free_port()
        await stack.enter_async_context(running([sys.executable, WANDERING, str(port)], listening(port)))
        server = {"url": f"http://127.0.0.1:{port}/mcp", "budgets": {"tool_timeout_ms": timeout_s * 1000}}
        config = {"schema": 1, "servers": {"far": server}, "limits": {"drain_timeout": "1s"}}
        yield await stack.enter_async_context(running_gateway(config))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with wandering_gateway(timeout_s=3) as running_one:
        yield running_one


def caller_without_primed_streams(gateway: Gateway) -> RawClient:
    """Of a revision without primed streams: its own stream stays open while the upstream's is resumed."""
    return RawClient(gateway.url, version="2025-06-18")


def text_of(answered: Answer) -> str:
    text: str = answered.result["content"][0]["text"]
    return text


async def runs_of(caller: RawClient, tool: str) -> int:
    return int(json.loads(text_of(await caller.call("far__runs", {}))).get(tool, 0))


@pytest.mark.parametrize("way", ["beside", "accepted", "resumed", "resumed_beside"])
async def test_a_response_reaches_its_call_on_every_stream(gateway: Gateway, way: str) -> None:
    async with caller_without_primed_streams(gateway) as caller:
        before = await runs_of(caller, way)
        assert text_of(await caller.call(f"far__{way}", {})) == way
        assert await runs_of(caller, way) == before + 1


async def test_a_response_may_arrive_on_the_stream_of_another_call(gateway: Gateway) -> None:
    async with caller_without_primed_streams(gateway) as caller:
        lost = asyncio.create_task(caller.call("far__neighbour", {}))
        deadline = clock.monotonic() + 5
        while await runs_of(caller, "neighbour") == 0:
            assert clock.monotonic() < deadline
        assert text_of(await caller.call("far__carrier", {})) == "carrier"
        assert text_of(await asyncio.wait_for(lost, 5)) == "neighbour"


async def test_a_stream_is_resumed_after_the_retry_time_of_the_server(gateway: Gateway) -> None:
    async with caller_without_primed_streams(gateway) as caller:
        began = clock.monotonic()
        assert text_of(await caller.call("far__resumed", {})) == "resumed"
        assert clock.monotonic() - began >= RETRY_S - 1e-6


@pytest.mark.real_processes
async def test_a_missing_response_is_a_timeout_after_one_execution(gateway: Gateway) -> None:
    async with caller_without_primed_streams(gateway) as caller:
        assert verdict(await caller.call("far__never", {})) == ("upstream_timeout", "maybe")
        assert await runs_of(caller, "never") == 1


async def test_a_resumed_stream_has_the_remaining_time(gateway: Gateway) -> None:
    async with caller_without_primed_streams(gateway) as caller:
        began = clock.monotonic()
        assert verdict(await caller.call("far__late", {"seconds": 2})) == ("upstream_timeout", "maybe")
        assert 2.9 < clock.monotonic() - began < 4.4


async def test_a_call_may_be_executed_if_its_stream_cannot_be_resumed() -> None:
    async with wandering_gateway() as gateway, caller_without_primed_streams(gateway) as caller:
        assert verdict(await caller.call("far__gone", {})) == ("upstream_unreachable", "maybe")


@pytest.mark.parametrize("way", ["neighbour", "never"])
@pytest.mark.parametrize("stateless", [False, True])
async def test_a_call_longer_than_the_drain_ends_with_an_error_and_the_gateway_exits_cleanly(
    way: str, stateless: bool
) -> None:
    async with wandering_gateway() as gateway, caller_without_primed_streams(gateway) as watcher:
        async with RawClient(gateway.url, stateless=stateless, version="2025-06-18") as caller:
            opened = asyncio.create_task(caller.call(f"far__{way}", {}))
            deadline = clock.monotonic() + 5
            while await runs_of(watcher, way) == 0:
                assert clock.monotonic() < deadline
            assert await gateway.stop() == 0
            assert verdict(await asyncio.wait_for(opened, 5)) == ("outcome_unknown", "maybe")
    assert "Traceback" not in gateway.log
    assert "never retrieved" not in gateway.log
