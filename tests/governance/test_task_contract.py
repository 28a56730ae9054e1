"""The contract between what tools show about tasks and what calls may do, for a task-aware caller: by default, and in `strict`.

Each test is one row of the tables an approval gateway for tasks has to pass: capabilities, annotations, validation, ownership,
changes while running, and the edges of the task methods.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.features.wire_client import session
from tests.governance.approval_setup import RULES, TOOLS, Setup, Stateful, config, eventually, running_setup, tool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]
MODES = ("auto", "strict")
NESTED: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
FLAT = {"tasks": {"requests": {"tools/call": True}}}
STATUS = {"notifications": {"tasks": {"status": True}}}
RULES_HERE = [*RULES, {"match": "pay_*", "action": "policy", "policy_id": "p", "approval": "ops"}]
CEDAR = "permit (principal, action, resource) when { context.arguments.amount <= 100 };"


def settings(folder: Path, mode: str) -> dict[str, Any]:
    (folder / "p.cedar").write_text(CEDAR)
    return {
        "tasks": {"annotation_mode": mode},
        "governance": {"rules": RULES_HERE, "force_required": ["export_all"]},
        "cedar": {"policies": ["./p.cedar"]},
    }


def described(name: str, support: str | None) -> dict[str, Any]:
    made = tool(name)
    return {**made, "execution": {"taskSupport": support}} if support is not None else made


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def without_tasks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Setup]:
    """A gateway with an upstream that does not support tasks."""
    folder = tmp_path_factory.mktemp("plain")
    async with running_setup(folder, **settings(folder, request.param)) as setup:
        setup.mode = request.param
        yield setup


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def with_tasks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    """A gateway before an upstream that has tasks of its own and announces their status."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "CAPABILITIES").write_text(json.dumps({**NESTED, **STATUS}))
    more = [described("may", "optional"), described("may_not", "forbidden"), described("must", "required")]
    async with running_setup(folder, [*TOOLS, *more], **settings(folder, request.param)) as setup:
        setup.mode = request.param
        yield setup


async def aware(setup: Setup) -> Stateful:
    return await setup.stateful({"tasks": {}})


async def shown(caller: Stateful) -> dict[str, str]:
    tools = (await caller.ask("tools/list"))["result"]["tools"]
    for each in tools:
        assert each["execution"]["taskSupport"] == each["annotations"]["taskSupport"]
    ours = [each for each in tools if each["name"].startswith("s__")]
    return {each["name"].removeprefix("s__"): each["execution"]["taskSupport"] for each in ours}


async def test_the_task_capability_is_advertised_whatever_the_upstream_has(
    without_tasks: Setup, with_tasks: Setup
) -> None:
    """Capability injection (upstream has none, upstream has tasks); capability advertisement."""
    for setup in (without_tasks, with_tasks):
        caller = await aware(setup)
        tasks = caller.opened["capabilities"]["tasks"]
        assert tasks["requests"]["tools/call"] is True
        assert tasks["requests"]["tools"]["call"] == {}
        assert caller.opened["capabilities"]["tools"]


async def test_status_notifications_are_advertised_only_if_the_upstream_has_them(
    without_tasks: Setup, with_tasks: Setup
) -> None:
    """SSE conditional advertisement: upstream with SSE, upstream without SSE."""
    assert "notifications" not in (await aware(without_tasks)).opened["capabilities"]
    assert (await aware(with_tasks)).opened["capabilities"]["notifications"] == {"tasks": {"status": True}}


async def test_the_upstreams_capabilities_are_logged(without_tasks: Setup, with_tasks: Setup) -> None:
    """Upstream capability detection and SSE capability detection, as they are logged."""
    await shown(await aware(without_tasks))
    await shown(await aware(with_tasks))
    assert "Upstream capabilities: tasks=false sse=false" in without_tasks.gateway.log
    assert "Upstream capabilities: tasks=true sse=true" in with_tasks.gateway.log


async def test_annotations_before_an_upstream_without_tasks(without_tasks: Setup) -> None:
    """Annotation: upstream no tasks + no approval, + approval possible, force_required override; tool annotation presence."""
    seen = await shown(await aware(without_tasks))
    strict = without_tasks.mode == "strict"
    assert seen["delete_it"] == seen["pay_it"] == seen["export_all"] == "required"
    assert seen["read_it"] == ("forbidden" if strict else "optional")
    assert seen.get("drop_it") == ("forbidden" if strict else None)


async def test_annotations_before_an_upstream_with_tasks(with_tasks: Setup) -> None:
    """Annotation: upstream has tasks + no approval, forbidden + approval possible."""
    seen = await shown(await aware(with_tasks))
    strict = with_tasks.mode == "strict"
    assert seen["delete_it"] == "required"
    assert seen["may"] == "optional"
    assert seen["may_not"] == ("forbidden" if strict else "optional")
    assert seen["must"] == ("required" if strict else "optional")


async def test_the_annotation_of_each_tool_is_logged_with_its_reason(without_tasks: Setup) -> None:
    await shown(await aware(without_tasks))
    log = without_tasks.gateway.log
    assert "Tool annotation: delete_it -> required (yaml_action=approve)" in log
    assert "(yaml_action=forward, upstream_tasks=false)" in log
    metrics = (await without_tasks.http.get(f"{without_tasks.gateway.base}/metrics")).text
    assert 'taskgate_tools_by_annotation{annotation="required"} 4.0' in metrics


async def test_a_caller_without_tasks_may_call_tools_that_require_a_task(without_tasks: Setup) -> None:
    seen = await shown(await without_tasks.stateful())
    assert seen["delete_it"] == ("required" if without_tasks.mode == "strict" else "optional")


async def test_a_required_task_that_is_missing_is_an_error(without_tasks: Setup) -> None:
    """Validation: required + no task."""
    caller = await aware(without_tasks)
    for name in ("s__delete_it", "s__pay_it", "s__export_all"):
        error = (await caller.call(name, {"amount": 5}))["error"]
        assert error["code"] == -32601
        assert error["data"]["error_type"] == "task_required"
        assert error["data"]["legacy_code"] == -32009
        assert error["data"]["executed"] == "no"
        assert "ttl" in error["data"]["hint"]


async def test_a_task_where_it_is_forbidden_is_an_error_in_strict_only(without_tasks: Setup) -> None:
    """Validation: forbidden + task present; upstream no tasks + forward tool."""
    caller = await aware(without_tasks)
    reply = await caller.call("s__read_it", task={"ttl": 60000})
    if without_tasks.mode == "strict":
        assert reply["error"]["data"]["error_type"] == "task_forbidden"
        assert reply["error"]["data"]["legacy_code"] == -32010
        return
    # Forward + task + an upstream that cannot: a task of our own that runs at once, without an approval.
    task_id = reply["result"]["taskId"]
    assert task_id.startswith("tg_")
    result = await caller.ask("tasks/result", taskId=task_id)
    assert result["result"]["content"][0]["text"].startswith("did read_it")


async def test_a_denied_tool_is_refused_without_the_reason(without_tasks: Setup) -> None:
    error = (await (await aware(without_tasks)).call("s__drop_it", task={"ttl": 60000}))["error"]
    assert error["data"]["executed"] == "no"
    assert "drop_*" not in json.dumps(error)


async def test_a_tool_with_approval_becomes_a_task_of_the_gateway_regardless_of_the_upstream(
    without_tasks: Setup, with_tasks: Setup
) -> None:
    """Upstream no tasks + approval tool; task ID routing: tg_ prefix; task metadata handling."""
    for setup in (without_tasks, with_tasks):
        caller = await aware(setup)
        made = (await caller.call("s__delete_it", task={"ttl": 60000}))["result"]
        assert made["taskId"].startswith("tg_")
        assert made["status"] == "working"
        assert (await caller.ask("tasks/get", taskId=made["taskId"]))["result"]["status"] == "input_required"
        await caller.ask("tasks/cancel", taskId=made["taskId"])


async def test_a_policy_that_forwards_makes_a_task_that_runs_at_once(without_tasks: Setup) -> None:
    """Forward + task + forbidden; accelerated approve flow: the result comes by tasks/result."""
    caller = await aware(without_tasks)
    made = (await caller.call("s__pay_it", {"amount": 5}, task={"ttl": 60000}))["result"]
    result = await caller.ask("tasks/result", taskId=made["taskId"])
    assert result["result"]["content"][0]["text"].startswith("did pay_it")


@pytest.mark.parametrize("arguments", [{"amount": 500}, {"amount": "5"}, {}, {"amount": None}, {"amount": 1e30}])
async def test_a_policy_that_rejects_or_fails_refuses_the_call(without_tasks: Setup, arguments: dict[str, Any]) -> None:
    before = len(without_tasks.sent())
    error = (await (await aware(without_tasks)).call("s__pay_it", arguments, task={"ttl": 60000}))["error"]
    assert error["code"] == -32003
    assert error["data"]["error_type"] == "policy_denied"
    assert len(without_tasks.sent()) == before


async def test_ambiguous_arguments_are_refused(without_tasks: Setup) -> None:
    caller = await aware(without_tasks)
    before = len(without_tasks.sent())
    for arguments in ({"amount": 5, "Amount": 500}, {"Amount": 5}, {"amount": 5, "\uff41mount": 500}):
        for name in ("s__pay_it", "s__delete_it") if len(arguments) > 1 else ("s__pay_it",):
            assert (await caller.call(name, arguments, task={"ttl": 60000}))["error"]["code"] == -32602
    assert len(without_tasks.sent()) == before


async def test_a_forwarded_task_is_run_by_an_upstream_that_can(with_tasks: Setup) -> None:
    """Forward + task + optional: the upstream runs it as a task of its own."""
    caller = await aware(with_tasks)
    made = (await caller.call("s__may", task={"ttl": 60000}))["result"]
    result = await caller.ask("tasks/result", taskId=made["taskId"])
    assert result["result"]["content"][0]["text"] == "did may as a task"


async def test_each_tool_runs_as_task_of_gateway_or_server_by_its_rule(with_tasks: Setup) -> None:
    """Full handshake (initialize, tools/list, tools/call) and mixed ownership: some tools forward, some approve."""
    caller = await aware(with_tasks)
    seen = await shown(caller)
    assert (seen["delete_it"], seen["may"]) == ("required", "optional")
    before = len(with_tasks.sent())
    held = (await caller.call("s__delete_it", task={"ttl": 60000}))["result"]
    forwarded = (await caller.call("s__may", task={"ttl": 60000}))["result"]
    result = await caller.ask("tasks/result", taskId=forwarded["taskId"])
    assert result["result"]["content"][0]["text"] == "did may as a task"
    assert [each["name"] for each in with_tasks.sent()[before:]] == ["may"], "a call that was not approved was sent"
    await caller.ask("tasks/cancel", taskId=held["taskId"])


async def test_status_notifications_are_sent_if_advertised(with_tasks: Setup) -> None:
    """Client subscribes SSE when advertised."""
    async with session(with_tasks.gateway, {"tasks": {}}, listen=True) as caller:
        made = await caller.call("s__may", {}, task={"ttl": 60000})
        task_id = made["task"]["taskId"]
        reply = await caller.wait_for_message(
            "notifications/tasks/status", lambda params: params["status"] == "completed"
        )
        assert reply["taskId"] == task_id


async def test_task_lists_contain_own_tasks_with_the_name_of_their_tool(without_tasks: Setup) -> None:
    """tasks/list of ours only: the upstream has no task support."""
    caller = await aware(without_tasks)
    made = (await caller.call("s__delete_it", task={"ttl": 60000}))["result"]
    rows = (await caller.ask("tasks/list"))["result"]["tasks"]
    assert [(row["taskId"], row["toolName"]) for row in rows] == [(made["taskId"], "s__delete_it")]
    await caller.ask("tasks/cancel", taskId=made["taskId"])


@pytest.mark.parametrize("task", [5, "now", [], None, True])
async def test_malformed_task_metadata_is_refused(without_tasks: Setup, task: Any) -> None:
    """EC-SEP-001 in every annotation mode."""
    assert (await (await aware(without_tasks)).call("s__delete_it", task=task))["error"]["code"] == -32602


@pytest.mark.parametrize("ttl", [0, -1, 1.5, "60000"])
async def test_a_ttl_that_is_no_positive_whole_number_is_refused(without_tasks: Setup, ttl: Any) -> None:
    """EC-SEP-002 in every annotation mode."""
    assert (await (await aware(without_tasks)).call("s__delete_it", task={"ttl": ttl}))["error"]["code"] == -32602


async def test_a_ttl_above_the_limit_is_cut_and_warned_about(without_tasks: Setup) -> None:
    """EC-SEP-003 in every annotation mode."""
    caller = await aware(without_tasks)
    made = (await caller.call("s__delete_it", task={"ttl": 10**12}))["result"]
    assert made["task"]["ttl"] == 86_400_000
    assert "ttl clamped" in without_tasks.gateway.log
    await caller.ask("tasks/cancel", taskId=made["taskId"])


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("task_id", ["tg_00000000000000000000000000", "abc123", "tg_nonsense"])
async def test_unknown_tasks_are_invalid_params(without_tasks: Setup, method: str, task_id: str) -> None:
    """Task ID routing: other; EC-SEP-005 to EC-SEP-007 in every annotation mode."""
    assert (await (await aware(without_tasks)).ask(method, taskId=task_id))["error"]["code"] == -32602


async def test_cancelling_a_finished_task_is_an_error(without_tasks: Setup) -> None:
    """EC-SEP-008 in every annotation mode."""
    caller = await aware(without_tasks)
    made = (await caller.call("s__delete_it", task={"ttl": 60000}))["result"]
    cancelled = (await caller.ask("tasks/cancel", taskId=made["taskId"]))["result"]
    assert cancelled["status"] == "cancelled"
    assert (await caller.ask("tasks/cancel", taskId=made["taskId"]))["error"]["code"] == -32602


async def test_subscribing_to_status_where_it_is_not_advertised_is_an_error(without_tasks: Setup) -> None:
    """Client ignores capability, attempts SSE; client subscribes SSE when not advertised."""
    reply = await (await aware(without_tasks)).ask("tasks/subscribe", taskId="tg_00000000000000000000000000")
    assert reply["error"]["code"] == -32601


async def test_an_upstream_without_tools_is_valid(without_tasks: Setup) -> None:
    """EC-SEP-004 in every annotation mode."""
    without_tasks.describe([])
    await _restart_upstream(without_tasks)
    caller = await aware(without_tasks)

    async def empty() -> bool | None:
        return (await shown(caller)) == {} or None

    assert await eventually(empty)
    without_tasks.describe(TOOLS)
    await _restart_upstream(without_tasks)
    await eventually(lambda: _full(caller))


async def test_changed_capabilities_of_a_reconnected_upstream_are_used(without_tasks: Setup) -> None:
    """Upstream reconnect; upstream gains SSE, then loses SSE on reconnect; EC-SEP-010."""
    folder = without_tasks.tools.parent
    (folder / "CAPABILITIES").write_text(json.dumps({**FLAT, **STATUS}))
    await _restart_upstream(without_tasks)

    async def gained() -> bool | None:
        await shown(await aware(without_tasks))
        return "notifications" in (await aware(without_tasks)).opened["capabilities"] or None

    assert await eventually(gained)
    if without_tasks.mode == "strict":
        assert (await shown(await aware(without_tasks)))["read_it"] == "optional"
    (folder / "CAPABILITIES").unlink()
    await _restart_upstream(without_tasks)

    async def lost() -> bool | None:
        await shown(await aware(without_tasks))
        return "notifications" not in (await aware(without_tasks)).opened["capabilities"] or None

    assert await eventually(lost)


async def test_a_reload_changes_the_listed_annotations(without_tasks: Setup) -> None:
    """Policy reload: annotations updated, cache invalidated."""
    folder = without_tasks.tools.parent
    more = settings(folder, without_tasks.mode)
    more["governance"] = {"rules": [{"match": "read_*", "action": "approve", "approval": "ops"}, *RULES_HERE]}
    await without_tasks.gateway.reload(config(folder, **more))

    async def changed() -> bool | None:
        return (await shown(await aware(without_tasks)))["read_it"] == "required" or None

    assert await eventually(changed)


async def _full(caller: Stateful) -> bool | None:
    return bool(await shown(caller)) or None


async def _restart_upstream(setup: Setup) -> None:
    """The upstream's process ends; the gateway will start another when it needs one."""
    pid = int((setup.tools.parent / "PID").read_text())
    os.kill(pid, signal.SIGTERM)
