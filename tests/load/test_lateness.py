"""A gateway that cannot keep up refuses calls at once, before they are executed; one that was held up for a moment does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.virtual_time import Gateway, Upstream, settle, the_loop, virtual_time
from tests.virtual_time.callers import META, STATELESS
from tests.virtual_time.http11 import body_parts, read_head, request_bytes

from taskgate import clock


def call_bytes(tool: str) -> bytes:
    meta = {f"{META}protocolVersion": STATELESS, f"{META}clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "_meta": meta}}
    headers = {
        "host": "127.0.0.1",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": STATELESS,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    return request_bytes("POST", "/mcp", headers, json.dumps(message).encode())


async def answered(gate: Gateway, busy_s: float) -> tuple[int, dict[str, str], bytes]:
    """One call. Something else holds the gateway for `busy_s` between reading the call and looking at it."""
    reader, writer = await gate.connect()
    await settle()
    writer.write(call_bytes("notes__echo"))
    the_loop().call_soon(the_loop().leap, busy_s)
    status, headers = await read_head(reader)
    body = b"".join([part async for part in body_parts(reader, headers)])
    writer.close()
    return status, headers, body


async def answers(gate: Gateway, busy_s: float, times: int = 1) -> list[int]:
    """The statuses of this many calls, one after the other, each of which waits this long before it is examined."""
    return [(await answered(gate, busy_s))[0] for _ in range(times)]


@virtual_time
async def test_one_stall_refuses_no_call() -> None:
    """A large message or a collection of garbage makes the calls of that moment late; they can be answered at once."""
    server = Upstream()
    async with Gateway({"limits": {"busy_after": "200ms"}}, {"notes": server}) as gate:
        for stall_s in (0.21, 1.0, 30.0):
            assert await answers(gate, stall_s) == [200]
            assert await answers(gate, 0.0, 3) == [200] * 3
        assert server.count("echo") == 12


@virtual_time
async def test_calls_of_one_stall_are_all_answered() -> None:
    server = Upstream()
    async with Gateway({"limits": {"busy_after": "200ms"}}, {"notes": server}) as gate:
        connections = [await gate.connect() for _ in range(50)]
        await settle()
        for _, writer in connections:
            writer.write(call_bytes("notes__echo"))
        the_loop().call_soon(the_loop().leap, 0.9)
        heads = [await read_head(reader) for reader, _ in connections]
        assert [status for status, _ in heads] == [200] * 50
        assert server.count("echo") == 50


class StalledLoop:
    """Each iteration of the event loop takes this long, so a call is examined one iteration after it was read.

    `take_time` is `compute` of the loop, or `leap` if other programs use the CPU meanwhile.
    """

    def __init__(self, turn_s: float, take_time: Callable[[float], None] | None = None) -> None:
        self.turn_s = turn_s
        self._take_time = take_time or the_loop().compute
        the_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if self.turn_s:
            self._take_time(self.turn_s)
            the_loop().call_soon(self._turn)


async def crowd(gate: Gateway, callers: int, calls: int) -> list[tuple[float, int, dict[str, Any]]]:
    """Callers that each send a call as soon as the last was answered: when each answer came, its status and its error.

    They begin in successive iterations of the event loop, so that calls are waiting whenever one is examined.
    """

    async def caller(number: int) -> list[tuple[float, int, dict[str, Any]]]:
        reader, writer = await gate.connect()
        found = []
        for _ in range(number):
            await asyncio.sleep(0)
        for _ in range(calls):
            writer.write(call_bytes("notes__echo"))
            status, headers = await read_head(reader)
            body = json.loads(b"".join([part async for part in body_parts(reader, headers)]))
            found.append((clock.monotonic(), status, body.get("error", {}).get("data", {})))
        writer.close()
        return found

    return sorted(
        (one for each in await asyncio.gather(*map(caller, range(callers))) for one in each),
        key=lambda one: one[:2],
    )


async def statuses_when_stalled_again(gate: Gateway) -> list[int]:
    """The statuses of the first two calls when the loop is stalled again. Only the second is late if the loop was idle before."""
    stalled = StalledLoop(0.25)
    seen = await crowd(gate, 1, 2)
    stalled.turn_s = 0.0
    return [status for _, status, _ in seen]


@virtual_time
async def test_calls_that_stay_late_are_refused_until_one_is_on_time() -> None:
    server = Upstream()
    async with Gateway({"limits": {"busy_after": "200ms"}}, {"notes": server}) as gate:
        assert await answers(gate, 0.0) == [200]
        stalled, began = StalledLoop(0.25), clock.monotonic()
        seen = await crowd(gate, 8, 12)
        refused = [(at, data) for at, status, data in seen if status == 503]
        assert all((data["error_type"], data["executed"]) == ("overloaded", "no") for _, data in refused)
        assert refused[0][0] - began > 0.2, "they must stay late for an interval"
        assert [status for at, status, _ in seen if at > refused[0][0]].count(503) > len(seen) / 2
        stalled.turn_s = 0.0
        await gate.advance(0.1)
        answered_before = server.count("echo")
        assert answered_before == 1 + len(seen) - len(refused)
        assert await answers(gate, 0.0, 3) == [200] * 3
        assert 503 in await statuses_when_stalled_again(gate), "the same overload is not given another interval"


@virtual_time
async def test_calls_that_other_programs_make_late_are_answered() -> None:
    server = Upstream()
    async with Gateway({"limits": {"busy_after": "200ms"}}, {"notes": server}) as gate:
        assert await answers(gate, 0.0) == [200]
        stalled = StalledLoop(0.25, the_loop().leap)
        seen = await crowd(gate, 8, 12)
        stalled.turn_s = 0.0
        assert [status for _, status, _ in seen] == [200] * 96


@virtual_time
async def test_long_event_loop_turns_without_lateness_refuse_nothing() -> None:
    server = Upstream()
    async with Gateway({"limits": {"busy_after": "200ms"}}, {"notes": server}) as gate:
        # On this loop a timer can be late by two iterations.
        stalled = StalledLoop(0.09)
        seen = await crowd(gate, 8, 6)
        stalled.turn_s = 0.0
        assert {status for _, status, _ in seen} == {200}


@virtual_time
async def test_a_reload_that_leaves_the_limit_as_it_is_does_not_end_an_overload() -> None:
    server = Upstream()
    async with Gateway({"limits": {"busy_after": "200ms"}}, {"notes": server}) as gate:
        stalled = StalledLoop(0.25)
        seen = await crowd(gate, 8, 12)
        stalled.turn_s = 0.0
        assert 503 in {status for _, status, _ in seen}
        admission = gate.life.app.gateway.console.load.admission
        lateness = admission._lateness
        await gate.reload({"limits": {"busy_after": "200ms", "calls_in_flight": 9_000}})
        assert admission._lateness is lateness
        await gate.reload({"limits": {"busy_after": "300ms", "calls_in_flight": 9_000}})
        assert admission._lateness is not lateness
