"""A task that ends while a request reads it: the request gets the end at once, not at its next regular check."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.tasks.task import Task
from taskgate.store.views.tasks import TaskView

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
    may_end, get = asyncio.Event(), TaskView.get

    async def ends_meanwhile(store: TaskView, task_id: str, *, include_expired: bool = False) -> Task | None:
        found = now = await get(store, task_id, include_expired=include_expired)
        if not may_end.is_set():
            may_end.set()
            while now is not None and not now.state.is_terminal:
                await asyncio.sleep(0.01)
                now = await get(store, task_id, include_expired=include_expired)
        return found

    async with Gateway(PROMOTE, {"notes": server(may_end)}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {"list": {}, "cancel": {}, "requests": {}}})
        call = caller.begin_call("slow")
        await gate.advance(2)
        task = re.findall(r"tg_\w+", call.reply.text)[0]
        monkeypatch.setattr(TaskView, "get", ends_meanwhile)
        began = asyncio.get_running_loop().time()
        if tool == "tasks/result":
            reply = await caller.request("tasks/result", {"taskId": task})
        else:
            reply = await caller.call("get_task_result", {"task_id": task})
        assert "done" in str(reply.result)
        assert asyncio.get_running_loop().time() - began < 1
