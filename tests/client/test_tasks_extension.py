"""The tasks extension of 2026-07-28, against a server on `mcp` 2.3 and against `fastmcp-tasks`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.narrow import present

from taskgate.client import (
    InvalidReply,
    Question,
    ServerError,
    TaskCancelled,
    TaskNotFound,
    TasksNotSupported,
    TaskStatus,
    accept,
    connect,
)

TIMEOUT = 120.0


def agree(question: Question) -> dict[str, Any]:
    properties = question.params["requestedSchema"]["properties"]
    return accept({name: True if prop.get("type") == "boolean" else "Ann" for name, prop in properties.items()})


LONG = {"seconds": 30}
TOOLS: dict[str, dict[str, Any]] = {
    "everything": {
        "work": ("slow_compute", {"seconds": 0.4}),
        "long": ("slow_compute", LONG),
        "ask": ("confirm_delete", {"filename": "old.txt"}),
    },
    "fastmcp_tasks": {"work": ("work", {"seconds": 0.4}), "long": ("work", LONG), "ask": ("work_asking", {})},
    "gateway": {"work": ("work", {"seconds": 1.0}), "long": ("work", LONG)},
}
EVERYTHING = pytest.param("everything", marks=pytest.mark.peers("mcp23"))
FASTMCP = pytest.param("fastmcp_tasks", marks=pytest.mark.peers("fastmcp"))
GATEWAY = pytest.param("gateway", marks=pytest.mark.peers("mcp130"))


@pytest.fixture(params=[EVERYTHING, FASTMCP, GATEWAY])
def extension_server(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The URL of a server and what its tools are called."""
    return request.getfixturevalue(request.param), TOOLS[request.param]


@pytest.fixture(params=[EVERYTHING, FASTMCP])
def asking_server(request: pytest.FixtureRequest) -> tuple[str, tuple[str, dict[str, Any]]]:
    """The same, and a tool that asks a question from inside its task (the gateway asks before there is a task)."""
    return request.getfixturevalue(request.param), TOOLS[request.param]["ask"]


async def test_a_task_is_driven_to_its_end_by_a_plain_call(extension_server: Any) -> None:
    url, tools = extension_server
    async with connect(url) as session:
        assert session.generation == "stateless"
        result = await session.call_tool(*tools["work"], timeout=TIMEOUT)
        assert result.text.startswith(("computed", "worked"))


async def test_a_task_reports_its_status_until_it_is_completed(extension_server: Any) -> None:
    url, tools = extension_server
    async with connect(url) as session:
        handle = await session.call_tool_as_task(*tools["work"])
        assert handle.task_id
        updates = [update async for update in handle.updates()]
        assert updates[0].status is TaskStatus.WORKING
        assert updates[-1].status is TaskStatus.COMPLETED
        assert not (await handle.result(TIMEOUT)).is_error
        assert session.active_tasks == {}


async def test_the_questions_of_a_task_are_answered_by_the_callback(asking_server: Any) -> None:
    url, tool = asking_server
    async with connect(url, elicitation=agree) as session:
        result = await session.call_tool(*tool, timeout=TIMEOUT)
        assert "accept" in result.text


async def test_the_questions_of_a_task_can_be_answered_explicitly(asking_server: Any) -> None:
    url, tool = asking_server
    async with connect(url, answer_by_hand=True) as session:
        handle = await session.call_tool_as_task(*tool)
        answered = 0
        async with asyncio.timeout(TIMEOUT):
            async for update in handle.updates():
                for key, question in update.questions.items():
                    await handle.answer({key: agree(question)})
                    answered += 1
        assert answered == 1
        assert "accept" in (await handle.result(TIMEOUT)).text


async def test_a_cancelled_task_raises_from_result(extension_server: Any) -> None:
    url, tools = extension_server
    async with connect(url) as session:
        handle = await session.call_tool_as_task(*tools["long"])
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(TIMEOUT)


async def test_a_task_is_resumed_by_another_session(extension_server: Any) -> None:
    url, tools = extension_server
    async with connect(url) as first:
        task_id = (await first.call_tool_as_task(*tools["work"])).task_id
    async with connect(url) as second:
        handle = await second.resume_task(present(task_id))
        assert not (await handle.result(TIMEOUT)).is_error


async def test_an_unknown_task_is_a_typed_error(extension_server: Any) -> None:
    url, _ = extension_server
    async with connect(url) as session:
        with pytest.raises(TaskNotFound):
            await session.get_task("never-made")


@pytest.mark.peers("mcp23")
async def test_a_tool_error_is_a_result_and_a_protocol_error_is_raised(everything: str) -> None:
    async with connect(everything) as session:
        assert (await session.call_tool("failing_job", timeout=TIMEOUT)).is_error
        with pytest.raises(ServerError) as caught:
            await session.call_tool("protocol_error_job", timeout=TIMEOUT)
        assert caught.value.code == -32603


@pytest.mark.peers("mcp23")
async def test_a_round_of_questions_may_come_before_the_task(everything: str) -> None:
    async with connect(everything, elicitation=agree) as session:
        result = await session.call_tool("test_tool_with_task", timeout=TIMEOUT)
        assert result.text == "Hello, Ann!"


@pytest.mark.peers("mcp23")
async def test_a_call_that_needs_no_task_gives_a_finished_handle(everything: str) -> None:
    async with connect(everything) as session:
        handle = await session.call_tool_as_task("greet", {"name": "Bob"})
        assert handle.task_id is None
        assert handle.status is TaskStatus.COMPLETED
        assert (await handle.result()).text == "Hello, Bob!"
        assert [update.status async for update in handle.updates()] == [TaskStatus.COMPLETED]


@pytest.mark.peers("mcp23")
async def test_without_the_extension_no_task_is_made(everything: str) -> None:
    async with connect(everything, tasks=False) as session:
        assert (await session.call_tool("slow_compute", {"seconds": 0}, timeout=TIMEOUT)).text.startswith("computed")
        with pytest.raises(TasksNotSupported):
            await session.call_tool_as_task("slow_compute", {"seconds": 0})
        with pytest.raises(ServerError) as caught:
            await session.call_tool("failing_job")
        assert caught.value.code == -32021


@pytest.mark.peers("mcp23")
async def test_there_is_no_list_of_tasks_in_this_generation(everything: str) -> None:
    async with connect(everything) as session:
        with pytest.raises(TasksNotSupported):
            await session.list_tasks()


async def test_an_unrequested_task_is_an_error_without_the_extension(faulty: str) -> None:
    async with connect(faulty, tasks=False, generation="stateless") as session:
        with pytest.raises(InvalidReply, match="did not declare"):
            await session.call_tool("unasked_task")
