"""Methods and error codes of an older family of clients, where they are enabled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.features.wire_client import config, refused, session, stateless
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
METHODS = ("tasks/create", "requests/cancel", "elicitation/create")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    settings = config(
        compat={"vendor_methods": True}, errors={"profile": "erlmcp"}, limits={"open_tasks_per_caller": 3}
    )
    async with running_gateway(settings) as running:
        yield running


async def test_vendor_methods_do_not_exist_unless_enabled() -> None:
    async with running_gateway(config()) as running, session(running) as caller:
        for method in METHODS:
            problem = await refused(caller.ask(method))
            assert (problem.code, problem.kind) == (-32601, "method_not_found")


async def test_vendor_methods_do_not_exist_for_stateless_callers(gateway: Gateway) -> None:
    async with stateless(gateway) as caller:
        for method in METHODS:
            assert (await refused(caller.ask(method))).code == -32601


async def test_a_task_is_made_of_a_tool_call(gateway: Gateway) -> None:
    async with session(gateway, {"tasks": {}}) as caller:
        made = await caller.ask("tasks/create", {"action": "echo", "arguments": {"x": 1}, "status": "pending"})
        assert set(made) == {"taskId", "status", "createdAt"}
        assert made["status"] in ("pending", "working", "completed")
        assert type(made["createdAt"]) is int
        result = await caller.ask("tasks/result", {"taskId": made["taskId"]})
        assert '"x": 1' in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("method", "params", "code", "kind", "named"),
    [
        (
            "tasks/create",
            {},
            -32602,
            "invalid_params",
            ("action", "arguments"),
        ),
        (
            "tasks/create",
            {"action": "echo", "id": ""},
            -32602,
            "invalid_params",
            ("id",),
        ),
        ("tasks/get", {"taskId": "nope"}, -32081, "unknown_task", ()),
        ("tasks/get", {"taskId": 7}, -32602, "invalid_params", ("taskId",)),
        (
            "elicitation/create",
            {"elicitations": []},
            -32602,
            "invalid_params",
            ("elicitations",),
        ),
        (
            "elicitation/create",
            {"elicitations": [{"type": "form", "name": "x"}]},
            -32602,
            "invalid_params",
            ("type", "name", "description"),
        ),
    ],
)
async def test_bad_input_is_refused_with_the_older_number_where_there_is_one(
    gateway: Gateway, method: str, params: dict[str, Any], code: int, kind: str, named: tuple[str, ...]
) -> None:
    async with session(gateway, {"tasks": {}}) as caller:
        problem = await refused(caller.ask(method, params))
        assert (problem.code, problem.kind) == (code, kind)
        assert problem.names(named)


@pytest.mark.real_processes
async def test_an_id_can_be_used_once(gateway: Gateway) -> None:
    async with session(gateway, {"tasks": {}}) as caller:
        await caller.ask("tasks/create", {"id": "mine", "action": "echo", "arguments": {}})
        for arguments in ({"other": 1}, {}):
            problem = await refused(
                caller.ask("tasks/create", {"id": "mine", "action": "echo", "arguments": arguments})
            )
            assert (problem.code, problem.kind) == (-32082, "task_exists")


async def test_a_finished_task_cannot_be_cancelled(gateway: Gateway) -> None:
    async with session(gateway, {"tasks": {}}) as caller:
        made = await caller.ask("tasks/create", {"action": "echo"})
        await caller.ask("tasks/result", {"taskId": made["taskId"]})
        problem = await refused(caller.ask("tasks/cancel", {"taskId": made["taskId"]}))
        assert (problem.code, problem.kind) == (-32090, "task_finished")


async def test_too_many_tasks_have_their_own_number(gateway: Gateway) -> None:
    async with session(gateway, {"tasks": {}}) as caller:
        made = [await caller.ask("tasks/create", {"action": "wait"}) for _ in range(3)]
        problem = await refused(caller.ask("tasks/create", {"action": "wait"}))
        assert (problem.code, problem.kind) == (-32087, "overloaded")
        for task in made:
            await caller.ask("tasks/cancel", {"taskId": task["taskId"]})


async def test_the_gates_apply_to_vendor_methods() -> None:
    rules = {"rules": [{"match": "echo", "action": "deny"}]}
    settings = config(compat={"vendor_methods": True}, governance=rules)
    async with running_gateway(settings) as running, session(running, {"tasks": {}}) as caller:
        problem = await refused(caller.ask("tasks/create", {"action": "echo"}))
        assert problem.kind in ("unknown_tool", "policy_denied")
