"""Tasks that a server keeps for a principal are listed in each of its sessions, and in those of no other principal."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.virtual_time import Call, Caller, Gateway, Upstream, virtual_time

from taskgate.store.operations.task_queries import FindTask


def token_of(name: str) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(f"{name}-token-0123456789".encode()).hexdigest()}


CONFIG: dict[str, Any] = {
    "tokens": [token_of("ann"), token_of("eve")],
    "servers": {"far": {"instances": "per_principal"}},
}
ROW = {"taskId": "theirs-1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}


def server() -> Upstream:
    upstream = Upstream("2025")

    async def echo(_call: Call) -> str:
        return "hi"

    async def listed(call: Call) -> dict[str, Any]:
        return {"tasks": [{**ROW, "lastUpdatedAt": ROW["createdAt"]}]}

    async def shown(call: Call) -> dict[str, Any]:
        assert call.params["taskId"] == "theirs-1"
        return {**ROW, "lastUpdatedAt": ROW["createdAt"]}

    upstream.tool("echo", echo, as_task=True)
    upstream.on("tasks/list", listed)
    upstream.on("tasks/get", shown)
    return upstream


async def session_of(gate: Gateway, name: str) -> Caller:
    return await gate.caller("2025", token=f"{name}-token-0123456789", capabilities={"tasks": {}})


async def rows(caller: Caller) -> list[str]:
    return [row["taskId"] for row in (await caller.request("tasks/list")).result["tasks"]]


@virtual_time
async def test_a_new_session_lists_the_upstream_tasks_of_its_principal() -> None:
    async with Gateway(CONFIG, {"far": server()}) as gate:
        first = await session_of(gate, "ann")
        await first.call("far__echo")
        (alias,) = await rows(first)
        await first.close()
        fresh = await session_of(gate, "ann")
        assert await rows(fresh) == [alias]
        assert (await fresh.request("tasks/get", {"taskId": alias})).result["status"] == "working"
        other = await session_of(gate, "eve")
        assert await rows(other) == []
        await other.call("far__echo")
        assert alias not in await rows(other)
        assert "error" in (await other.begin("tasks/get", {"taskId": alias}).done()).last


@virtual_time
async def test_a_task_of_the_gateway_at_a_server_is_listed_once_also_after_a_restart() -> None:
    """The server lists it in every conversation of the same principal, and this gateway has no record that it is its own."""
    far, listed = server(), list[dict[str, Any]]()

    async def slow(call: Call) -> str:
        await call.sleep(1000)
        return "done"

    async def everything(_call: Call) -> dict[str, Any]:
        return {"tasks": listed}

    far.tool("slow", slow, as_task=True)
    far.as_usual("tasks/get")
    far.on("tasks/list", everything)
    async with Gateway(CONFIG, {"far": far}) as gate:
        caller = await gate.caller("2025", token="ann-token-0123456789")
        handle = (await caller.call("far__slow", {}, task={"ttl": 3_600_000})).result["task"]
        await gate.advance(1)
        ours = await gate.life.app.gateway.console.calls.tasks.store.ask(FindTask(handle["taskId"]))
        assert ours is not None
        assert ours.upstream_handle is not None
        listed += [{**ROW, "taskId": name} for name in (ours.upstream_handle.task_id, "its own")]
        for restarted in (False, True):
            if restarted:
                await gate.restart()
                caller = await gate.caller("2025", token="ann-token-0123456789")
            assert (await caller.call("far__echo")).text == "hi"
            found = [task["taskId"] for task in (await caller.request("tasks/list")).result["tasks"]]
            assert found.count(handle["taskId"]) == 1
            assert [name.startswith("up_") for name in found].count(True) == 1, (restarted, found)
