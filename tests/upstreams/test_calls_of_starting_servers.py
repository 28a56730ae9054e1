"""The time in which the program of a server starts does not count as waiting for its tool, up to a limit."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.virtual_time import Gateway, until, virtual_time

SERVER = Path(__file__).parent / "slow_start_server.py"
ABLE: dict[str, Any] = {"elicitation": {"form": {}}}
BLUE = {"action": "accept", "content": {"value": "blue"}}


@asynccontextmanager
async def starting(start_s: float, **tasks: Any) -> AsyncIterator[Gateway]:
    """A gateway whose callers wait for 10 s, and whose sessions each start a process of the server, which takes this long."""
    server = {"command": sys.executable, "args": [str(SERVER), str(start_s)], "instances": "per_session"}
    config = {"servers": {"slow": server}, "tasks": {"promote_after_ms": 10_000, **tasks}}
    async with Gateway(config) as gate:
        caller = await gate.caller("2025")
        for _ in range(200):
            if any(tool["name"] == "slow__run" for tool in await caller.tools()):
                break
            await gate.advance(1)
        yield gate


@virtual_time
async def test_the_start_of_a_server_does_not_count_for_promotion() -> None:
    async with starting(8) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("slow__run", {"seconds": 5})
        assert (await call.done()).text == "call 1"
        assert 13 <= call.took < 14


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_question_of_a_server_that_was_started_for_the_call_reaches_the_caller(generation: str) -> None:
    async with starting(8, promote_after_ms=5_000) as gate:
        caller = await gate.caller(generation, capabilities=ABLE, answers={"elicitation/create": BLUE})
        reply = await caller.call("slow__run", {"asks": True})
        if generation == "2025":
            assert reply.text == "call 1"
            assert len(caller.asked) == 1
        else:
            assert reply.result["resultType"] == "input_required"


@virtual_time
async def test_tool_that_works_longer_than_its_caller_waits_is_promoted_after_the_start() -> None:
    async with starting(8) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("slow__run", {"seconds": 15})
        assert "continues as task" in (await call.done()).text
        assert 17.9 <= call.took < 19


@virtual_time
async def test_call_is_promoted_at_the_latest_time_from_its_arrival() -> None:
    async with starting(8, promote_latest_ms=14_000) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("slow__run", {"seconds": 9})
        assert "continues as task" in (await call.done()).text
        assert 13.9 <= call.took < 15


@virtual_time
async def test_call_whose_server_still_starts_is_promoted_without_being_sent_and_runs_once() -> None:
    async with starting(9, promote_after_ms=3_000, promote_latest_ms=6_000) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("slow__run", {"seconds": 1})
        promoted = (await call.done()).result["structuredContent"]["taskgate_notice"]
        assert 5.9 <= call.took < 7
        result = await caller.request("tasks/result", {"taskId": promoted["task_id"]})
        assert result.text == "call 1"
        again = await caller.call("slow__run", {})
        assert again.text == "call 2"


@virtual_time
async def test_call_that_was_promoted_before_it_was_sent_is_sent_after_a_crash() -> None:
    async with starting(9, promote_after_ms=3_000, promote_latest_ms=6_000) as gate:
        caller = await gate.caller("2025")
        promoted = (await caller.call("slow__run")).result["structuredContent"]["taskgate_notice"]
        gate.crash()
        await gate.start()
        caller = await gate.caller("2025")
        result = await caller.request("tasks/result", {"taskId": promoted["task_id"]})
        assert result.text == "call 1"


@virtual_time
async def test_latest_promotion_is_not_before_the_usual_one() -> None:
    async with starting(5, promote_after_ms=20_000, promote_latest_ms=1_000) as gate:
        caller = await gate.caller("2025")
        call = caller.begin_call("slow__run", {"seconds": 12})
        assert (await call.done()).text == "call 1"


@virtual_time
async def test_cancelled_call_leaves_no_timer_and_no_task() -> None:
    async with starting(9) as gate:
        caller = await gate.caller("2026")
        call = caller.begin_call("slow__run", {})
        await gate.advance(5)
        await call.disconnect()
        await gate.advance(60)
        assert (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"] == []


@virtual_time
async def test_caller_that_names_its_longest_wait_does_not_wait_for_the_start() -> None:
    server = {"command": sys.executable, "args": [str(SERVER), "9"], "instances": "per_session"}
    scopes = {"default": {"default_servers": ["*"], "mode": "facade"}}
    async with Gateway({"servers": {"slow": server}, "scopes": scopes}) as gate:
        await gate.advance(60)
        caller = await gate.caller("2025")
        arguments = {"server": "slow", "tool": "run", "args": {}, "timeout_ms": 5_000}
        call = caller.begin_call("execute_tool", arguments)
        await until(lambda: call.is_done)
        assert "Promoted to task" in call.reply.text
        assert 4.9 <= call.took < 6
