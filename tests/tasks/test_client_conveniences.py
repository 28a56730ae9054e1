"""What the client library adds for programs with many calls: keys, ttl, lists of tasks, gathering and the inbox."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.client import Session, TaskHandle, TasksNotSupported, ToolResult, accept, connect, gather
from taskgate.client.errors import ServerError

GENERATIONS = ["stateful", "stateless"]
ANN = {"tokens": [{"id": "ann", "sha256": hashlib.sha256(b"ann-token").hexdigest()}]}
QUESTION_SERVER = Path(__file__).parents[1] / "upstreams" / "question_server.py"


class Shop(Upstream):
    """Counts how many of its calls run at once."""

    def __init__(self) -> None:
        super().__init__("2025")
        self.open = self.maximum = 0

        @self.tool("work")
        async def work(call: Call) -> str:
            self.open += 1
            self.maximum = max(self.maximum, self.open)
            try:
                await call.sleep(call.arguments.get("seconds", 1))
            finally:
                self.open -= 1
            if call.arguments.get("fails"):
                raise RuntimeError("it broke")
            return f"did {call.arguments.get('item')}"


@asynccontextmanager
async def session_of(gate: Gateway, generation: str, token: str | None = "ann-token") -> AsyncIterator[Session]:
    async with connect(gate.url, token=token, generation=generation) as session:
        yield session


@pytest.mark.parametrize("generation", GENERATIONS)
@virtual_time
async def test_calls_with_one_key_run_once(generation: str) -> None:
    shop = Shop()
    async with Gateway(ANN, {"shop": shop}) as gate:
        async with session_of(gate, generation) as session:
            first = await session.call_tool("shop__work", {"item": 1}, key="k")
            again = await session.call_tool("shop__work", {"item": 1}, key="k")
            assert (first.text, again.text) == ("did 1", "did 1")
            one, two = [await session.call_tool_as_task("shop__work", {"item": 2}, key="t") for _ in range(2)]
            assert one.task_id == two.task_id
            assert (await two.result()).text == "did 2"
        async with session_of(gate, generation) as later:
            resumed = await later.call_tool_as_task("shop__work", {"item": 2}, key="t")
            assert (resumed.task_id, (await resumed.result()).text) == (one.task_id, "did 2")
        assert shop.count("work") == 2


@pytest.mark.parametrize("generation", GENERATIONS)
@virtual_time
async def test_ttl_is_requested_in_both_generations(generation: str) -> None:
    async with Gateway(ANN, {"shop": Shop()}) as gate, session_of(gate, generation) as session:
        handle = await session.call_tool_as_task("shop__work", {"item": 1}, ttl=123_000)
        assert (await session.get_task(handle.task_id or "")).ttl == 123_000
        with pytest.raises(ServerError) as refused:
            await session.call_tool_as_task("shop__work", {"item": 1}, ttl=-5)
        assert refused.value.error_type == "invalid_params"


@pytest.mark.parametrize("generation", GENERATIONS)
@virtual_time
async def test_tasks_of_the_caller_are_listed_in_both_generations(generation: str) -> None:
    async with Gateway(ANN, {"shop": Shop()}) as gate:
        async with session_of(gate, generation) as session:
            ended = await session.call_tool_as_task("shop__work", {"item": 1})
            await ended.result()
            running = await session.call_tool_as_task("shop__work", {"item": 2, "seconds": 600})
            listed = {task.task_id: task.status.value for task in await session.tasks()}
            assert listed == {ended.task_id: "completed", running.task_id: "working"}
        async with connect(gate.url, token="ann-token", generation="stateless") as later:
            assert {task.task_id for task in await later.tasks()} == set(listed)


@virtual_time
async def test_anonymous_stateless_session_lists_its_own_tasks_only() -> None:
    async with (
        Gateway({}, {"shop": Shop()}) as gate,
        session_of(gate, "stateless", None) as one,
        session_of(gate, "stateless", None) as other,
    ):
        handle = await one.call_tool_as_task("shop__work", {"item": 1})
        assert [task.task_id for task in await one.tasks()] == [handle.task_id]
        assert await other.tasks() == []


@virtual_time
async def test_stateless_server_that_is_no_gateway_has_no_list() -> None:
    async with Gateway({}, {"shop": Upstream("2026")}) as gate:
        async with connect(gate.upstreams["shop"].url, generation="stateless") as session:
            with pytest.raises(TasksNotSupported):
                await session.tasks()
            assert await session.inbox() == []


@pytest.mark.parametrize("generation", GENERATIONS)
@virtual_time
async def test_gather_keeps_order_and_limit(generation: str) -> None:
    shop = Shop()
    async with Gateway(ANN, {"shop": shop}) as gate, session_of(gate, generation) as session:
        calls = (
            session.call_tool_as_task("shop__work", {"item": number, "seconds": 9 - number}) for number in range(9)
        )
        results = await gather(calls, limit=3)
        assert [result.text for result in results] == [f"did {number}" for number in range(9)]
        assert shop.maximum == 3
        handles: list[TaskHandle] = [
            await session.call_tool_as_task("shop__work", {"item": number}) for number in range(3)
        ]
        assert [result.text for result in await gather(handles, limit=1)] == ["did 0", "did 1", "did 2"]


@virtual_time
async def test_gather_raises_the_first_error_or_returns_it_in_its_place() -> None:
    shop = Shop()
    async with Gateway(ANN, {"shop": shop}) as gate, session_of(gate, "stateless") as session:
        names = ["shop__work", "shop__nothing", "shop__work"]

        def calls() -> list[Any]:
            return [session.call_tool_as_task(name, {"item": 1, "seconds": 5}) for name in names]

        with pytest.raises(ServerError) as raised:
            await gather(calls(), limit=1)
        assert raised.value.error_type == "unknown_tool"
        assert shop.count("work") == 1
        found = await gather(calls(), limit=1, return_errors=True)
        assert [type(one) for one in found] == [ToolResult, ServerError, ToolResult]
        with pytest.raises(ValueError, match="limit"):
            await gather([], limit=0)


@virtual_time
async def test_questions_in_the_inbox_are_read_and_answered_by_another_program() -> None:
    server = {"command": sys.executable, "args": [str(QUESTION_SERVER)], "instances": "per_principal"}
    async with Gateway({"servers": {"shop": server}, **ANN}) as gate:
        async with (
            connect(gate.url, token="ann-token", generation="stateful") as one,
            connect(gate.url, token="ann-token", generation="stateful") as two,
            connect(gate.url, token="ann-token", generation="stateless") as other,
        ):
            async with asyncio.TaskGroup() as group:
                stays = group.create_task(one.call_tool("shop__stay"))
                asks = group.create_task(two.call_tool("shop__ask", {"company": 1}))
                found: list[Any] = []

                async def waits() -> bool:
                    found[:] = await other.inbox()
                    return bool(found)

                while not await waits():
                    await asyncio.sleep(0.5)
                (question,) = found
                assert question.message == "Which colour?"
                with pytest.raises(ServerError):
                    await other.answer_inbox(question, {"action": "perhaps"})
                await other.answer_inbox(question, accept({"value": "blue"}))
            assert "blue" in asks.result().text
            assert stays.result().text == "stayed"
            assert await other.inbox() == []
