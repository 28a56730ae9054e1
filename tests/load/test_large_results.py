"""A result of 15 MiB does not block other callers: the longest step of the gateway in CPU time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.harness.cpu_time import slowness, untraced
from tests.virtual_time import Call, Caller, Gateway, Reply, Upstream, virtual_time
from tests.virtual_time.longest_step import longest_step

from taskgate.core import wire
from taskgate.upstreams.flight import Flight
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.secret_filter import SecretFilter, ServerSecrets
from taskgate.upstreams.stream_wire import StreamWire

MIB = 1 << 20
PAUSE_S = 0.020
TEXTS = {
    "plain": "x" * (15 * MIB),
    "escaped": 'He said "no" \\ and\nleft. ' * (15 * MIB // 30),
    "umlauts": "ü" * (2 * MIB),
}


def _server(generation: str, text: str) -> Upstream:
    upstream = Upstream(generation)

    async def large(call: Call) -> str:
        if call.arguments.get("streams"):
            call.notify("notifications/message", {"level": "info", "data": "it comes"})
        return text

    upstream.tool("large", large)
    return upstream


async def _least(gate: Gateway | None, step: Callable[[], Awaitable[Any]]) -> tuple[float, str]:
    """Of several tries: on a busy machine the others pay for their neighbours."""
    found = []
    with untraced():
        for _ in range(25):
            before = slowness()
            with longest_step(gate.process if gate is not None else None) as longest:
                await step()
            found.append((longest.seconds / max(before, slowness()), longest.where))
            if found[-1][0] < PAUSE_S:
                break
    return min(found)


async def _task_result(caller: Caller) -> Reply:
    made = await caller.call("big__large", {}, task={"ttl": 60_000})
    return await caller.request("tasks/result", {"taskId": made.result["task"]["taskId"]})


async def _as_task(caller: Caller, size: int) -> None:
    assert len((await _task_result(caller)).text) == size


def _each_kind_between_generations() -> list[Any]:
    """One pairing for each kind of text and each generation on both sides; the others are long (`make pause`)."""
    return [
        pytest.param(caller, upstream, kind, marks=[] if (one + two + three) % 3 == 0 else [pytest.mark.long])
        for one, caller in enumerate(("2025", "2026"))
        for two, upstream in enumerate(("2025", "2026"))
        for three, kind in enumerate(TEXTS)
    ]


@virtual_time
@pytest.mark.parametrize(("caller_is", "upstream", "kind"), _each_kind_between_generations())
async def test_a_large_result_of_a_plain_call(caller_is: str, upstream: str, kind: str) -> None:
    text = TEXTS[kind]
    async with Gateway({"limits": {"json_nodes": 100_000}}, {"big": _server(upstream, text)}) as gate:
        caller = await gate.caller(caller_is)
        await caller.tools()

        async def call() -> None:
            assert len((await caller.call("big__large")).text) == len(text)

        seconds, where = await _least(gate, call)
        assert seconds < PAUSE_S, (seconds, where)


@virtual_time
@pytest.mark.parametrize("upstream", ["2025", "2026"])
async def test_a_large_result_on_an_event_stream(upstream: str) -> None:
    text = TEXTS["plain"]
    async with Gateway({}, {"big": _server(upstream, text)}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()

        async def call() -> None:
            assert len((await caller.call("big__large", {"streams": True})).text) == len(text)

        seconds, where = await _least(gate, call)
        assert seconds < PAUSE_S, (seconds, where)


@virtual_time
@pytest.mark.parametrize(("upstream", "kind"), [("2025", "escaped"), ("2026", "plain")])
async def test_a_large_result_of_a_task(upstream: str, kind: str) -> None:
    text = TEXTS[kind]
    async with Gateway({}, {"big": _server(upstream, text)}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        seconds, where = await _least(gate, lambda: _as_task(caller, len(text)))
        assert seconds < PAUSE_S, (seconds, where)


STRUCTURED = {
    "said twice": {"rows": [{"name": "x" * 100, "number": n} for n in range(15 * MIB // 300)]},
    "checked": {"rows": ["x" * 900 for _ in range(1000)]},
}


def _typed(structured: Any, text: str) -> Upstream:
    upstream = Upstream("2025")

    async def large(call: Call) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": text}], "structuredContent": structured}

    rows = {"type": "array", "items": {"type": ["string", "object"]}}
    upstream.tool("large", large, outputSchema={"type": "object", "properties": {"rows": rows}, "required": ["rows"]})
    return upstream


@virtual_time
@pytest.mark.parametrize(("as_task", "kind"), [(False, "checked"), (True, "said twice")])
async def test_a_large_result_of_a_tool_with_an_output_schema(as_task: bool, kind: str) -> None:
    text = TEXTS["plain"][: 14 * MIB if kind == "checked" else 8 * MIB]
    config = {"validate": "enforce", "limits": {"json_nodes": 1_000_000}}
    async with Gateway(config, {"big": _typed(STRUCTURED[kind], text)}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()

        async def call() -> None:
            if as_task:
                await _as_task(caller, len(text))
            else:
                assert len((await caller.call("big__large")).text) == len(text)

        seconds, where = await _least(gate, call)
        assert seconds < PAUSE_S, (seconds, where)


@virtual_time
@pytest.mark.parametrize(
    ("as_task", "kind", "kept"), [(False, "escaped", MIB), (False, "plain", 12 * MIB), (True, "escaped", 12 * MIB)]
)
async def test_a_large_result_that_is_cut(as_task: bool, kind: str, kept: int) -> None:
    config = {"servers": {"big": {"budgets": {"max_tool_output_bytes": kept}}}}
    async with Gateway(config, {"big": _server("2025", TEXTS[kind])}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()

        async def call() -> None:
            reply = await (_task_result(caller) if as_task else caller.call("big__large"))
            first, note = reply.result["content"]
            assert TEXTS[kind].startswith(first["text"])
            assert 0.8 * kept < len(first["text"]) < kept
            assert "cut by the gateway" in note["text"]

        seconds, where = await _least(gate, call)
        assert seconds < PAUSE_S, (seconds, where)


@virtual_time
async def test_a_large_error_of_a_task() -> None:
    kind = "escaped"
    upstream = Upstream("2025")

    async def large(call: Call) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": TEXTS[kind]}], "isError": True}

    upstream.tool("large", large)
    async with Gateway({}, {"big": upstream}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()

        async def call() -> None:
            made = await caller.call("big__large", {}, task={"ttl": 60_000})
            which = {"taskId": made.result["task"]["taskId"]}
            assert len((await caller.request("tasks/result", which)).text) == len(TEXTS[kind])
            shown = await caller.request("tasks/get", which)
            assert shown.result["statusMessage"].startswith(TEXTS[kind][:200])

        seconds, where = await _least(gate, call)
        assert seconds < PAUSE_S, (seconds, where)


class _Pipe(StreamWire):
    async def _write(self, body: bytes) -> int:
        return 1


@virtual_time
@pytest.mark.parametrize("kind", TEXTS)
async def test_a_large_result_of_a_child(kind: str) -> None:
    """The line as it comes from the pipe, to the message that the link gets."""
    line = wire.success(b"7", wire.encode({"content": [{"type": "text", "text": TEXTS[kind]}]}))

    async def call() -> None:
        stream = _Pipe("child", Intake(), SecretFilter(ServerSecrets(())))
        asked = asyncio.ensure_future(stream.request(Flight(7, b"7", 30.0), b"{}"))
        await asyncio.sleep(0)
        stream.received(line)
        assert memoryview((await asked).raw_result or b"").nbytes > len(TEXTS[kind])

    seconds, where = await _least(None, call)
    assert seconds < PAUSE_S, (seconds, where)


@virtual_time
async def test_a_large_resource() -> None:
    blob = "QUJD" * (15 * MIB // 4)
    upstream = Upstream("2025", capabilities={"resources": {}})

    async def read(call: Call) -> dict[str, Any]:
        return {"contents": [{"uri": "file:///large", "blob": blob}]}

    async def listed(call: Call) -> dict[str, Any]:
        return {"resources": [{"uri": "file:///large", "name": "large"}]}

    upstream.on("resources/read", read)
    upstream.on("resources/list", listed)
    async with Gateway({}, {"big": upstream}) as gate:
        caller = await gate.caller("2025")
        await caller.request("resources/list")

        async def call() -> None:
            reply = await caller.request("resources/read", {"uri": "file:///large"})
            assert len(reply.result["contents"][0]["blob"]) == len(blob)

        seconds, where = await _least(gate, call)
        assert seconds < PAUSE_S, (seconds, where)
