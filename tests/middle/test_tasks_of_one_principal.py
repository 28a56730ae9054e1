"""Tasks that a server keeps for a principal are listed in each of its sessions, and in nobody else's."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.seam import Call, Caller, Gateway, Upstream, seam


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


@seam
async def test_a_new_session_lists_what_the_server_keeps_for_its_principal() -> None:
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
