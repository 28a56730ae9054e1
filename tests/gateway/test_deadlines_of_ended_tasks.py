"""The deadline of a task is dropped soon after the task has ended, not hours later when it would be due."""

from __future__ import annotations

import gc

from tests.virtual_time import Gateway, Upstream, text, virtual_time

from taskgate.gateway.tasks.deadlines import TaskDeadlines


@virtual_time
async def test_ended_tasks_leave_no_deadlines() -> None:
    upstream = Upstream("2025")
    upstream.tool("quick", lambda _call: _done())
    async with Gateway({"tasks": {"default_ttl_ms": 1000}}, {"a": upstream}) as gate:
        caller = await gate.caller("2025")
        for _ in range(150):
            made = await caller.call("a__quick", {}, task={"ttl": 1000})
            await caller.request("tasks/result", {"taskId": made.result["task"]["taskId"]})
        kept = [len(each._next) for each in gc.get_objects() if isinstance(each, TaskDeadlines)]
        assert kept
        assert max(kept) <= 101
        await gate.advance(1)


async def _done() -> dict[str, object]:
    return text("done")
