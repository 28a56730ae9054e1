"""A task that ends while a request reads it: the request gets the end at once, not at its next regular check."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.store.open_store import OpenStore
from taskgate.store.operation import Query
from taskgate.store.operations.task_queries import FindTask

PROMOTE = {
    "scopes": {"default": {"default_servers": ["*"], "names": "plain"}},
    "tasks": {"promote_after_ms": 1_000},
}


def server(may_end: asyncio.Event) -> Upstream:
    notes = Upstream("both")

    @notes.tool("slow")
    async def slow(_call: Call) -> str:
        await may_end.wait()
        return "done"

    return notes


@virtual_time
@pytest.mark.parametrize("tool", ["get_task_result", "tasks/result"])
async def test_end_during_a_read_is_not_missed(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, ask = asyncio.Event(), OpenStore.ask

    async def ends_meanwhile(store: OpenStore, query: Query[Any]) -> Any:
        found = now = await ask(store, query)
        if isinstance(query, FindTask) and not may_end.is_set():
            may_end.set()
            while now is not None and not now.state.is_terminal:
                await asyncio.sleep(0.01)
                now = await ask(store, query)
        return found

    async with Gateway(PROMOTE, {"notes": server(may_end)}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {"list": {}, "cancel": {}, "requests": {}}})
        call = caller.begin_call("slow")
        await gate.advance(2)
        task = re.findall(r"tg_\w+", call.reply.text)[0]
        monkeypatch.setattr(OpenStore, "ask", ends_meanwhile)
        began = asyncio.get_running_loop().time()
        if tool == "tasks/result":
            reply = await caller.request("tasks/result", {"taskId": task})
        else:
            reply = await caller.call("get_task_result", {"task_id": task})
        assert "done" in str(reply.result)
        assert asyncio.get_running_loop().time() - began < 1
