"""A held call with large arguments does not block others, neither when it is held nor when it is shown."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.harness.cpu_time import PAUSE_S, slowness, untraced
from tests.virtual_time import Call, Gateway, Upstream, virtual_time
from tests.virtual_time.longest_step import longest_step

MIB = 1 << 20
CONFIG: dict[str, Any] = {
    "governance": {"rules": [{"match": "write", "action": "approve"}]},
    "limits": {"pending_approvals_per_caller": 100},
}


def server() -> Upstream:
    upstream = Upstream("2025")

    async def write(_call: Call) -> str:
        return "written"

    upstream.tool("write", write)
    return upstream


async def minimum(gate: Gateway, step: Callable[[], Awaitable[Any]]) -> tuple[float, str]:
    """Of several tries: on a busy machine the others pay for their neighbours."""
    found = []
    with untraced():
        for _ in range(25):
            before = slowness()
            with longest_step(gate.process) as longest:
                await step()
            found.append((longest.seconds / max(before, slowness()), longest.where))
            if found[-1][0] < PAUSE_S:
                break
    return min(found)


@virtual_time
@pytest.mark.parametrize("size", [MIB, 2 * MIB + MIB // 2])
async def test_a_large_card_is_rendered_without_blocking_the_event_loop(size: int) -> None:
    arguments = {"text": "<b>\u202e" * (size // 8), "rows": ["abcd"] * (size // 1000), "tail": "x" * (size // 3)}
    async with Gateway(CONFIG, {"far": server()}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        await caller.tools()

        async def hold() -> None:
            await caller.call("far__write", arguments, task={"ttl": 600_000})

        await hold()
        seconds, where = await minimum(gate, hold)
        assert seconds < PAUSE_S, f"asked for: {where}"
        rows = (await gate.operator("GET", "/api/approvals")).json()
        for path in ("/api/approvals", "/api/approvals/{}", "/approvals/{}", "/approvals/{}?full=1"):
            address = path.format(rows[0]["id"])
            seconds, where = await minimum(gate, lambda address=address: gate.operator("GET", address))  # type: ignore[misc]
            assert seconds < PAUSE_S, f"{path}: {where}"
        shown = (await gate.operator("GET", f"/api/approvals/{rows[0]['id']}")).json()
        assert json.loads(shown["arguments"])["tail"] == arguments["tail"]
