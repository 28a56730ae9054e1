"""Questions of a stateless upstream are stored: after a crash no answer is lost, and no tool runs twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.activity.callers import http_session, http_stateless
from tests.chaos.crash_setup import Setup, running_setup
from tests.tasks.test_task_methods import EXTENSION, begun

from taskgate.gateway.tasks.questions import TaskQuestions

pytestmark = [pytest.mark.timeout(60), pytest.mark.virtual_time]
ELICITS: dict[str, Any] = {"tasks": {}, "elicitation": {"form": {}}}


def accepted(value: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"value": value}}


async def asked(setup: Setup, task_id: str) -> dict[str, Any]:
    """The question of the task, as soon as there is one."""
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        shown: dict[str, Any] = {"status": "working"}
        while shown["status"] == "working":
            shown = await caller.ask("tasks/get", {"taskId": task_id})
        return shown


async def answer(setup: Setup, task_id: str, **answers: str) -> None:
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        responses = {key: accepted(value) for key, value in answers.items()}
        await caller.ask("tasks/update", {"taskId": task_id, "inputResponses": responses})


def after(event: asyncio.Event, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The method, which begins only after the event."""

    async def waits(*args: Any) -> Any:
        await event.wait()
        return await method(*args)

    return waits


@pytest.mark.parametrize("tool", ["once_ask", "once_ask_task"])
async def test_answers_given_before_and_after_a_crash_both_count(tmp_path: Path, tool: str) -> None:
    async with running_setup(tmp_path, generation="2026") as setup:
        async with http_session(setup.gateway, capabilities=ELICITS) as caller:
            task_id = await begun(caller, tool, "asks")
        # A server's own task may show its questions one after the other.
        async with asyncio.timeout(20):
            while set((await asked(setup, task_id))["inputRequests"]) != {"name", "colour"}:
                await asyncio.sleep(0.05)
        await answer(setup, task_id, name="Ann")
        left = await asked(setup, task_id)
        assert set(left["inputRequests"]) == {"colour"}
        await setup.gateway.kill()
        await setup.gateway.start_again()
        again = await asked(setup, task_id)
        assert again["inputRequests"] == left["inputRequests"]
        await answer(setup, task_id, colour="blue", name="Bob")
        ended = await asked(setup, task_id)
        assert ended["status"] == "completed", ended
        if tool == "once_ask":
            assert ended["result"]["content"][1]["text"] == "colour blue, name Ann"
        assert setup.ledger.count("asks") == 1


@pytest.mark.parametrize("tool", ["once_ask", "once_ask_task"])
async def test_answers_given_before_a_task_continues_after_a_crash_count(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_setup(tmp_path, generation="2026") as setup:
        async with http_session(setup.gateway, capabilities=ELICITS) as caller:
            task_id = await begun(caller, tool, "asks")
        async with asyncio.timeout(20):
            while set((await asked(setup, task_id))["inputRequests"]) != {"name", "colour"}:
                await asyncio.sleep(0.05)
        await setup.gateway.kill()
        may_continue = asyncio.Event()
        for method in ("resume", "ask_once"):
            monkeypatch.setattr(TaskQuestions, method, after(may_continue, getattr(TaskQuestions, method)))
        await setup.gateway.start_again()
        await answer(setup, task_id, colour="blue", name="Ann")
        may_continue.set()
        ended = await asked(setup, task_id)
        assert ended["status"] == "completed", ended
        if tool == "once_ask":
            assert ended["result"]["content"][1]["text"] == "colour blue, name Ann"
        assert setup.ledger.count("asks") == 1


async def test_a_stream_opened_after_a_crash_gets_the_open_questions(tmp_path: Path) -> None:
    async with running_setup(tmp_path, generation="2026") as setup:
        async with http_session(setup.gateway, capabilities=ELICITS) as caller:
            task_id = await begun(caller, "once_ask", "asks")
        await asked(setup, task_id)
        await setup.gateway.kill()
        await setup.gateway.start_again()
        async with http_session(setup.gateway, capabilities=ELICITS) as caller:
            caller.answers["elicitation/create"] = accepted("green")
            ended = await caller.ask("tasks/result", {"taskId": task_id})
            assert ended["content"][1]["text"] == "colour green, name green"
            related = {
                question["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"]
                for question in caller.asked
            }
            assert related == {task_id}
        assert setup.ledger.count("asks") == 1


async def test_a_caller_without_a_stream_gets_questions_on_its_next_stream(tmp_path: Path) -> None:
    async with running_setup(tmp_path, generation="2026") as setup:
        async with http_session(setup.gateway, capabilities=ELICITS) as caller:
            caller.answers["elicitation/create"] = accepted("red")
            task_id = await begun(caller, "once_ask", "asks")
            await asked(setup, task_id)
            ended = await caller.ask("tasks/result", {"taskId": task_id})
            assert ended["content"][1]["text"] == "colour red, name red"
            assert [question["params"]["message"] for question in caller.asked] == ["Which name?", "Which colour?"]
