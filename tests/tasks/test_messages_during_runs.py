"""Messages of a server during a task reach the session of its caller, also if the server made it a task itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.features.wire_client import PREFIX, TIMEOUT_S, WireClient, session
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
NOTIFYING = str(Path(__file__).resolve().parent.parent / "peers" / "notifying_server.py")
STATUS, PROGRESS, LOG = "notifications/tasks/status", "notifications/progress", "notifications/message"
RUN_BY = pytest.mark.parametrize("tool", ["steps", "steps_task"], ids=["run by us", "a task of the server's own"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    server = {"command": sys.executable, "args": [NOTIFYING]}
    scope = {"default_servers": ["*"], "names": "plain"}
    async with running_gateway({"schema": 1, "servers": {"tell": server}, "scopes": {"default": scope}}) as running:
        yield running


async def begun(caller: WireClient, tool: str, **meta: Any) -> str:
    made = await caller.call(tool, {"count": 3}, task={}, _meta=meta)
    return str(made["task"]["taskId"])


async def ended(caller: WireClient, task_id: str) -> None:
    await caller.wait_for_message(
        STATUS, lambda params: params["taskId"] == task_id and params["status"] == "completed"
    )


def related(params: dict[str, Any]) -> str | None:
    found = params.get("_meta", {}).get(f"{PREFIX}related-task")
    return found["taskId"] if found else None


@RUN_BY
async def test_the_callers_progress_token_is_valid_until_its_task_ends(gateway: Gateway, tool: str) -> None:
    async with session(gateway, {"tasks": {}}, listen=True) as caller:
        task_id = await begun(caller, tool, progressToken="mine")
        assert caller.messages_of(PROGRESS) == [], "the task was over before its handle came, so nothing is shown"
        await ended(caller, task_id)
        received = caller.messages_of(PROGRESS)
        assert [update["progress"] for update in received] == [1, 2, 3]
        assert {(update["progressToken"], update["total"], related(update)) for update in received} == {
            ("mine", 3, task_id)
        }
        over = next(i for i, m in enumerate(caller.received) if m["params"].get("status") == "completed")
        assert all(m["method"] != PROGRESS for m in caller.received[over:]), "progress after the end"


@RUN_BY
async def test_a_task_without_a_token_sends_no_progress(gateway: Gateway, tool: str) -> None:
    async with session(gateway, {"tasks": {}}, listen=True) as caller:
        await ended(caller, await begun(caller, tool))
        assert caller.messages_of(PROGRESS) == []


@RUN_BY
async def test_log_lines_of_a_run_reach_only_its_session(gateway: Gateway, tool: str) -> None:
    async with (
        session(gateway, {"tasks": {}}, listen=True) as caller,
        session(gateway, {"tasks": {}}, listen=True) as other,
    ):
        for each in (caller, other):
            await each.ask("logging/setLevel", {"level": "info"})
        task_id = await begun(caller, tool)
        await ended(caller, task_id)
        received = caller.messages_of(LOG)
        assert [(line["level"], line["data"]) for line in received] == [("warning", f"step {n}") for n in (1, 2, 3)]
        assert {related(line) for line in received} == {task_id}, "the server's own id of the task is not the caller's"
        assert other.messages_of(LOG) == []


async def test_log_lines_of_two_concurrent_tasks_are_separated(gateway: Gateway) -> None:
    async with session(gateway, {"tasks": {}}, listen=True) as ann, session(gateway, {"tasks": {}}, listen=True) as bob:
        made = {}
        for caller in (ann, bob):
            await caller.ask("logging/setLevel", {"level": "warning"})
            made[caller] = await begun(caller, "steps_task")
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(ended(caller, task_id) for caller, task_id in made.items()))
        for caller, task_id in made.items():
            assert [related(line) for line in caller.messages_of(LOG)] == [task_id] * 3
