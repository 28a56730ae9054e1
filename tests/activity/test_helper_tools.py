"""Callers without task support follow their long calls with tools."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.activity.callers import Failed, call, call_json, http_session, http_stateless, tool_names
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
HELPERS = {"list_tasks", "get_task", "get_task_result", "cancel_task"}
DEMO = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}
CONFIG = {
    "schema": 1,
    "servers": {"files": DEMO},
    "tasks": {"promote_after_ms": 300},
    "scopes": {
        "default": {"default_servers": ["*"]},
        "quiet": {"default_servers": ["*"], "helper_tools": "never"},
        "loud": {"default_servers": ["*"], "helper_tools": "always"},
    },
}
TASKS: dict[str, Any] = {"tasks": {"requests": {"sampling": {"createMessage": {}}}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG) as running:
        yield running


@pytest.mark.parametrize(
    ("scope", "capabilities", "shown"),
    [
        pytest.param("default", {}, True, id="a caller without tasks sees them"),
        pytest.param("default", TASKS, False, id="a caller that knows tasks does not"),
        pytest.param("loud", TASKS, True, id="always means always"),
        pytest.param("quiet", {}, False, id="never means never"),
    ],
)
async def test_helpers_are_listed_for_callers_that_need_them(
    gateway: Gateway, scope: str, capabilities: dict[str, Any], shown: bool
) -> None:
    async with http_session(gateway, scope, capabilities) as caller:
        assert (set(await tool_names(caller)) >= HELPERS) is shown


async def test_stateless_callers_see_the_helpers_whatever_they_declare(gateway: Gateway) -> None:
    extension: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    for capabilities in ({}, extension):
        async with http_stateless(gateway, capabilities=capabilities) as caller:
            assert set(await tool_names(caller)) >= HELPERS


async def test_a_slow_call_is_followed_to_its_result(gateway: Gateway) -> None:
    async with http_session(gateway) as caller:
        promoted = await call(caller, "files__slow_report", seconds=1.2)
        assert promoted["isError"] is False
        assert "get_task_result" in promoted["content"][0]["text"]
        (task,) = (await call_json(caller, "list_tasks"))["tasks"]
        assert (task["status"], task["server"], task["tool"]) == ("working", "files", "slow_report")
        early = await call_json(caller, "get_task_result", task_id=task["task_id"], timeout_ms=50)
        assert early["task"]["status"] == "working"
        assert "again" in early["text"]
        result: dict[str, Any] = {}
        while "words in" not in result.get("text", ""):
            result = await call_json(caller, "get_task_result", task_id=task["task_id"])
        assert (await call_json(caller, "get_task", task_id=task["task_id"]))["task"]["status"] == "completed"
        assert (await call_json(caller, "list_tasks"))["tasks"] == []
        (ended,) = (await call_json(caller, "list_tasks", include_completed=True))["tasks"]
        assert ended["status"] == "completed"


async def test_a_task_is_cancelled_once(gateway: Gateway) -> None:
    async with http_stateless(gateway, client="canceller") as caller:
        await call(caller, "files__slow_report", seconds=30)
        (task,) = (await call_json(caller, "list_tasks", status="working"))["tasks"]
        assert (await call_json(caller, "cancel_task", task_id=task["task_id"]))["success"] is True
        again = await call_json(caller, "cancel_task", task_id=task["task_id"])
        assert (again["success"], again["isError"]) == (False, True)
        result = await call_json(caller, "get_task_result", task_id=task["task_id"])
        assert result["isError"] is True
        assert result["task"]["status"] == "cancelled"


@pytest.mark.parametrize(
    ("name", "arguments", "expected_text"),
    [
        ("get_task", {}, 'needs "task_id"'),
        ("get_task", {"task_id": 7}, "must be a string"),
        ("get_task", {"task_id": "tg_01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "list_tasks shows"),
        ("get_task", {"task_id": "nonsense"}, "list_tasks shows"),
        ("get_task", {"task": "x"}, "Did you mean 'task_id'"),
        ("get_task_result", {"task_id": "x", "timeout_ms": 0}, "from 1 to"),
        ("get_task_result", {"task_id": "x", "timeout_ms": -5}, "from 1 to"),
        ("get_task_result", {"task_id": "x", "timeout_ms": 10**15}, "from 1 to"),
        ("list_tasks", {"status": "running"}, "one of working"),
        ("cancel_task", {"task_id": "tg_01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "list_tasks shows"),
    ],
)
async def test_invalid_parameters_are_error_results_with_the_next_step(
    gateway: Gateway, name: str, arguments: dict[str, Any], expected_text: str
) -> None:
    async with http_session(gateway) as caller:
        result = await call(caller, name, **arguments)
        assert result["isError"] is True
        assert expected_text in result["content"][0]["text"]


async def test_helpers_are_unknown_where_they_are_switched_off(gateway: Gateway) -> None:
    async with http_session(gateway, "quiet") as caller:
        with pytest.raises(Failed) as refusal:
            await call_json(caller, "list_tasks")
        assert refusal.value.error["data"]["error_type"] == "unknown_tool"


async def test_a_task_of_another_caller_is_not_listed(gateway: Gateway) -> None:
    async with http_session(gateway) as one, http_session(gateway) as other:
        await call(one, "files__slow_report", seconds=1)
        assert len((await call_json(one, "list_tasks"))["tasks"]) == 1
        assert (await call_json(other, "list_tasks", include_completed=True))["tasks"] == []
