"""Every configured limit is enforced, and a reload changes it for connected callers and servers too."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.activity.callers import Failed, call_json, http_session
from tests.gateway.conftest import MIRROR
from tests.gateway.test_broken_upstreams import verdict
from tests.gateway.test_lifecycle import _children, eventually, http_server, mirror
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port
from tests.harness.raw_client import Answer, RawClient, read_messages

from taskgate import clock

pytestmark = [pytest.mark.timeout(60), pytest.mark.virtual_time]
PIPE = {"command": sys.executable, "args": [str(MIRROR), "stdio"]}


def config(limits: dict[str, Any], **servers: Any) -> dict[str, Any]:
    return {"schema": 1, "servers": servers, "validate": "off", "limits": limits}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def outcome(answer: Answer) -> str:
    if "vendor/extra" in answer.reply.get("result", {}):
        return "fine"
    return verdict(answer)[0]


async def reloaded(gateway: Gateway, config: dict[str, Any], times: int = 1) -> None:
    async def logged() -> bool:
        return gateway.log.count("configuration reloaded") >= times

    await gateway.reload(config)
    await eventually(logged)


async def test_json_depth_applies_to_callers_and_servers(tmp_path: Path) -> None:
    port = free_port()
    servers = {"a": http_server(port), "pipe": PIPE}
    async with (
        mirror(port),
        running_gateway(config({"json_depth": 12}, **servers), tmp_path) as gateway,
        RawClient(gateway.url) as caller,
    ):

        async def ask(server: str, levels: int) -> str:
            return outcome(await caller.call(f"{server}__mirror", {"value": nested(levels)}))

        for server in servers:
            # The reply contains the request, one level deeper.
            found = [await ask(server, levels) for levels in range(6, 12)]
            assert found == ["fine", "fine", "fine", "upstream_protocol", "parse_error", "parse_error"]
        await reloaded(gateway, config({"json_depth": 150}, **servers))
        for server in servers:
            assert [await ask(server, levels) for levels in (10, 100, 160)] == ["fine", "fine", "parse_error"]


async def test_json_nodes_applies_to_callers_and_servers(tmp_path: Path) -> None:
    port = free_port()
    servers = {"a": http_server(port), "pipe": PIPE}
    async with (
        mirror(port),
        running_gateway(config({"json_nodes": 400}, **servers), tmp_path) as gateway,
        RawClient(gateway.url) as caller,
    ):

        async def ask(server: str, values: int) -> str:
            return outcome(await caller.call(f"{server}__mirror", {"value": [1] * values}))

        for server in servers:
            # The reply contains the request three times.
            found = [await ask(server, values) for values in (100, 300, 500)]
            assert found == ["fine", "upstream_protocol", "parse_error"]
        await reloaded(gateway, config({"json_nodes": 200_000}, **servers))
        for server in servers:
            assert [await ask(server, values) for values in (300, 60_000)] == ["fine", "fine"]


@pytest.mark.parametrize(
    ("few", "many", "size"),
    [
        pytest.param({"stream_buffer_events": 1}, {"stream_buffer_events": 10}, 10, id="events"),
        pytest.param({"stream_buffer_bytes": 2_000}, {"stream_buffer_bytes": 50_000}, 1_500, id="bytes"),
    ],
)
async def test_the_replay_limit_of_streams_applies(
    tmp_path: Path, few: dict[str, int], many: dict[str, int], size: int
) -> None:
    port = free_port()
    async with (
        mirror(port),
        running_gateway(config(few, a=http_server(port)), tmp_path) as gateway,
        RawClient(gateway.url) as caller,
    ):

        async def replayed(stream: str) -> int:
            headers = {**caller.headers, "accept": "text/event-stream", "last-event-id": f"{stream}.0"}
            return len(read_messages(await caller.http.get(gateway.url, headers=headers)))

        assert len((await caller.call("a__notify", {"value": "x" * size})).messages) == 2
        assert await replayed("s1") == 1
        await reloaded(gateway, config(many, a=http_server(port)))
        assert len((await caller.call("a__notify", {"value": "x" * size})).messages) == 2
        assert await replayed("s2") == 2


def facade(limits: dict[str, Any]) -> dict[str, Any]:
    scopes = {"default": {"default_servers": ["*"], "mode": "facade"}}
    return {"schema": 1, "servers": {"pipe": PIPE}, "scopes": scopes, "limits": limits}


async def timer_events(caller: Any, timers: int, wait_s: float) -> list[tuple[str, Any]]:
    """Set timers that fire together, wait without requests, then poll."""
    # The server is connected before, so that its connection is not among the events.
    await call_json(caller, "list_tools")
    for _ in range(timers):
        await call_json(caller, "set_timer", duration_ms=400, message="now")
    # No request may be sent meanwhile: every reply would deliver the events.
    await asyncio.sleep(wait_s)
    events = (await call_json(caller, "list_timers")).get("events_since_last_response", [])
    return [(event["type"], event["data"].get("count")) for event in events if event["type"] != "server_connected"]


async def test_the_limit_on_the_number_of_events_applies(tmp_path: Path) -> None:
    async with running_gateway(facade({"events_per_caller": 3}), tmp_path) as gateway, http_session(gateway) as caller:
        fired = ("timer_expired", None)
        assert await timer_events(caller, 5, 1.0) == [("events_lost", 2), *([fired] * 3)]
        await reloaded(gateway, facade({"events_per_caller": 30}))
        assert await timer_events(caller, 5, 1.0) == [fired] * 5


async def test_the_limit_on_the_age_of_events_applies(tmp_path: Path) -> None:
    async with running_gateway(facade({"events_age": "1s"}), tmp_path) as gateway, http_session(gateway) as caller:
        assert await timer_events(caller, 1, 2.0) == [("events_lost", 1)]
        await reloaded(gateway, facade({"events_age": "1h"}))
        assert await timer_events(caller, 1, 2.0) == [("timer_expired", None)]


async def test_the_limit_on_timers_of_a_session_applies(tmp_path: Path) -> None:
    async with running_gateway(facade({"timers_per_session": 2}), tmp_path) as gateway, http_session(gateway) as caller:

        async def one_more() -> bool:
            try:
                return not (await call_json(caller, "set_timer", duration_ms=60_000, message="later"))["isError"]
            except Failed:
                return False

        assert [await one_more() for _ in range(3)] == [True, True, False]
        await reloaded(gateway, facade({"timers_per_session": 3}))
        assert [await one_more() for _ in range(2)] == [True, False]


HALF_A_HEAD = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n"
HALF_A_BODY = HALF_A_HEAD + b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"


@pytest.mark.parametrize(("limit", "begun"), [("header_timeout", HALF_A_HEAD), ("body_timeout", HALF_A_BODY)])
async def test_the_request_timeout_applies(tmp_path: Path, limit: str, begun: bytes) -> None:
    async with running_gateway(config({limit: "8s"}, pipe=PIPE), tmp_path) as gateway:

        async def max_wait() -> float:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(begun)
            began = clock.monotonic()
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            return clock.monotonic() - began

        slow = asyncio.create_task(max_wait())
        await asyncio.sleep(4)
        assert not slow.done()
        await reloaded(gateway, config({limit: "1s"}, pipe=PIPE))
        # It holds at once, also for who has begun under the old one; the sweep comes once a second.
        assert 4 < await slow < 7
        assert 1 <= await max_wait() < 4


async def test_the_drain_timeout_applies_after_a_reload(tmp_path: Path) -> None:
    port = free_port()
    async with mirror(port), running_gateway(config({}, a=http_server(port)), tmp_path) as gateway:
        await reloaded(gateway, config({"drain_timeout": "500ms"}, a=http_server(port)))
        async with RawClient(gateway.url) as caller:
            await caller.call("a__mirror", {"value": 1})
            slow = asyncio.create_task(caller.call("a__sleep", {"value": 20}))
            await asyncio.sleep(0.3)
            began = clock.monotonic()
            assert await gateway.stop() == 0
            assert clock.monotonic() - began < 5
            assert verdict(await asyncio.wait_for(slow, 5)) == ("outcome_unknown", "maybe")


@pytest.mark.real_processes
async def test_the_limit_of_result_length_applies_to_open_sessions_after_a_reload(tmp_path: Path) -> None:
    port = free_port()
    servers = {"a": http_server(port), "pipe": PIPE}
    async with (
        mirror(port),
        running_gateway(config({}, **servers), tmp_path) as gateway,
        RawClient(gateway.url) as caller,
    ):

        async def ask(server: str) -> str:
            return outcome(await caller.call(f"{server}__mirror", {"value": "x" * 100_000}))

        assert [await ask(server) for server in servers] == ["fine", "fine"]
        (child,) = _children(gateway.pid, "mirror_server.py")

        async def changed_to(expected: str) -> bool:
            return [await ask(server) for server in servers] == [expected, expected]

        # A signal and the watched file may each reload it, so the number of reloads does not show which one happened.
        await gateway.reload(config({"result_bytes": 200_000}, **servers))
        await eventually(lambda: changed_to("result_too_large"))
        await gateway.reload(config({"result_bytes": 400_000}, **servers))
        await eventually(lambda: changed_to("fine"))
        assert _children(gateway.pid, "mirror_server.py") == [child]
