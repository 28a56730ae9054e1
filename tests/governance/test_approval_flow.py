"""The whole path of a call that needs approval, for each delivery mode: request, wait, decide, run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.governance.approval_setup import TASKS, URL, Setup, eventually, people, person, running_setup

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]

CALL = {"path": "/tmp/x", "password": "hunter2"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    async with running_setup(tmp_path_factory.mktemp("flow")) as setup:
        yield setup


@pytest_asyncio.fixture(loop_scope="module")
async def setup(shared_setup: Setup) -> AsyncIterator[Setup]:
    """The gateway all tests share, with nothing sent yet and nothing waiting."""
    shared_setup.notes.unlink(missing_ok=True)
    for row in (await shared_setup.api("GET", "/api/approvals")).json():
        await shared_setup.deny(row["id"])
    yield shared_setup


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["result"]["content"][0]["text"])


async def test_an_approved_task_of_2025_runs_when_its_caller_returns(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call("s__delete_it", CALL, task={"ttl": 60000})
    assert made["result"]["task"]["status"] == "working"
    task_id = made["result"]["taskId"]
    assert (await caller.ask("tasks/get", taskId=task_id))["result"]["status"] == "input_required"
    (row,) = await setup.open_approvals()
    assert setup.sent() == []
    decided = await setup.approve(row["id"])
    assert decided.status_code == 200
    assert decided.json()["state"] == "approved"
    result = await caller.ask("tasks/result", taskId=task_id)
    assert text_of(result).startswith("did delete_it")
    assert [sent["arguments"] for sent in setup.sent()] == [CALL]
    assert (await caller.ask("tasks/get", taskId=task_id))["result"]["status"] == "completed"


async def test_an_abandoned_task_never_runs(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    await caller.call("s__delete_it", CALL, task={"ttl": 60000})
    (row,) = await setup.open_approvals()
    decided = await setup.approve(row["id"])
    assert decided.json()["starts"] is False
    assert setup.sent() == []


async def test_execute_on_approval_runs_at_once(tmp_path: Path) -> None:
    async with running_setup(tmp_path, tasks={"execute_on": "approval"}) as setup:
        caller = await setup.stateful({"tasks": {}})
        await caller.call("s__delete_it", CALL, task={"ttl": 60000})
        (row,) = await setup.open_approvals()
        assert (await setup.approve(row["id"])).json()["starts"] is True
        await eventually(lambda: _when(setup.sent()))


async def test_a_plain_caller_of_2025_is_held_and_gets_the_result(setup: Setup) -> None:
    caller = await setup.stateful()
    waiting = asyncio.create_task(caller.call("s__delete_it", CALL))
    (row,) = await setup.open_approvals()
    await setup.approve(row["id"], token="ann-token")
    reply = await asyncio.wait_for(waiting, 15)
    assert text_of(reply).startswith("did delete_it")
    assert len(setup.sent()) == 1


async def test_a_held_plain_call_returns_its_task_after_the_wait_and_runs_later(
    tmp_path: Path,
) -> None:
    async with running_setup(tmp_path, tasks={"promote_after_ms": 300}) as setup:
        caller = await setup.stateful()
        reply = await caller.call("s__delete_it", CALL)
        assert "approval" in text_of(reply)
        assert "tg_" in text_of(reply)
        (row,) = await setup.open_approvals()
        await setup.approve(row["id"])
        await eventually(lambda: _when(setup.sent()))


async def test_a_caller_of_2026_with_tasks_gets_a_handle_at_once(setup: Setup) -> None:
    caller = setup.stateless(TASKS)
    made = (await caller.call("s__delete_it", CALL))["result"]
    assert made["resultType"] == "task"
    assert made["status"] == "working"
    (row,) = await setup.open_approvals()
    await setup.approve(row["id"])

    async def completed() -> dict[str, Any] | None:
        shown = (await caller.ask("tasks/get", taskId=made["taskId"]))["result"]
        return shown if shown["status"] == "completed" else None

    shown = await eventually(completed)
    assert shown["result"]["content"][0]["text"].startswith("did delete_it")


async def test_a_caller_of_2026_without_tasks_gets_the_page_and_its_retry_waits(setup: Setup) -> None:
    caller = setup.stateless(URL)
    asked = (await caller.call("s__delete_it", CALL))["result"]
    assert asked["resultType"] == "input_required"
    question = asked["inputRequests"]["approval"]
    (row,) = await setup.open_approvals()
    assert question["params"]["mode"] == "url"
    assert question["params"]["url"] == f"{setup.gateway.base}/approvals/{row['id']}"
    answers = {"approval": {"action": "accept"}}
    retry = asyncio.create_task(
        caller.call("s__delete_it", CALL, requestState=asked["requestState"], inputResponses=answers)
    )
    await asyncio.wait([retry], timeout=0.3)
    assert not retry.done()
    await setup.approve(row["id"])
    reply = await asyncio.wait_for(retry, 15)
    assert text_of(reply).startswith("did delete_it")
    assert len(setup.sent()) == 1


async def test_a_retry_with_other_arguments_is_refused(setup: Setup) -> None:
    """Bad input: arguments changed between the question and the retry."""
    caller = setup.stateless(URL)
    asked = (await caller.call("s__delete_it", CALL))["result"]
    (row,) = await setup.open_approvals()
    await setup.approve(row["id"])
    reply = await caller.call("s__delete_it", {"path": "/"}, requestState=asked["requestState"])
    assert reply["error"]["code"] == -32602
    assert setup.sent() == []


async def test_a_call_of_a_2026_caller_without_capabilities_is_held(setup: Setup) -> None:
    waiting = asyncio.create_task(setup.stateless().call("s__delete_it", CALL))
    (row,) = await setup.open_approvals()
    await setup.deny(row["id"], reason="Not on a Friday")
    reply = await asyncio.wait_for(waiting, 15)
    assert reply["error"]["data"]["error_type"] == "approval_rejected"
    assert "Not on a Friday" in reply["error"]["message"]
    assert setup.sent() == []


async def test_a_denial_reaches_the_task_with_its_reason(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call("s__delete_it", CALL, task={"ttl": 60000})
    (row,) = await setup.open_approvals()
    await setup.deny(row["id"], reason="Too risky")
    result = await caller.ask("tasks/result", taskId=made["result"]["taskId"])
    assert result["error"]["code"] == -32007
    assert result["error"]["data"]["executed"] == "no"
    assert "Too risky" in result["error"]["message"]
    assert setup.sent() == []


async def test_resources_and_prompts_are_held_without_a_task(setup: Setup) -> None:
    caller = await setup.stateful()
    reading = asyncio.create_task(caller.ask("resources/read", uri="note://secret"))
    (row,) = await setup.open_approvals()
    assert row["kind"] == "resource"
    assert row["task_id"] is None
    await setup.approve(row["id"])
    assert (await asyncio.wait_for(reading, 15))["result"]["contents"][0]["text"] == "the text"
    other = await setup.stateful()
    getting = asyncio.create_task(other.ask("prompts/get", name="s__draft_mail"))
    (row,) = await setup.open_approvals()
    await setup.deny(row["id"], reason="No drafts")
    assert "No drafts" in (await asyncio.wait_for(getting, 15))["error"]["message"]
    assert setup.sent("prompts/get") == []
    assert len(setup.sent("resources/read")) == 1


async def test_an_approval_given_after_a_crash_runs_once(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call("s__delete_it", CALL, task={"ttl": 600000})
    (row,) = await setup.open_approvals()
    await setup.gateway.kill()
    await setup.gateway.start()
    assert [r["id"] for r in await setup.open_approvals()] == [row["id"]]
    assert (await setup.approve(row["id"])).status_code == 200
    again = await setup.stateful({"tasks": {}})
    result = await again.ask("tasks/result", taskId=made["result"]["taskId"])
    assert text_of(result).startswith("did delete_it")
    assert len(setup.sent()) == 1


async def test_an_approved_call_that_was_not_sent_before_a_crash_is_sent_once_after_it(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call("s__delete_it", CALL, task={"ttl": 600000})
    (row,) = await setup.open_approvals()
    await setup.approve(row["id"])
    await setup.gateway.kill()
    await setup.gateway.start()
    assert setup.sent() == []
    again = await setup.stateful({"tasks": {}})
    await again.ask("tasks/result", taskId=made["result"]["taskId"])
    assert len(setup.sent()) == 1


async def test_stopping_the_gateway_cancels_no_approval(setup: Setup) -> None:
    caller = await setup.stateful()
    waiting = asyncio.create_task(caller.call("s__delete_it", CALL))
    (row,) = await setup.open_approvals()
    await setup.gateway.restart()
    await asyncio.gather(waiting, return_exceptions=True)
    (still,) = await setup.open_approvals()
    assert still["id"] == row["id"]
    await setup.approve(row["id"])
    await eventually(lambda: _when(setup.sent()))


async def test_a_workflow_may_require_two_approvers(tmp_path: Path) -> None:
    workflow = {"channels": ["inbox"], "approvals_needed": 2}
    async with running_setup(tmp_path, approval={"ops": workflow}, tokens=people("ann", "bob")) as setup:
        waiting = asyncio.create_task((await setup.stateful()).call("s__delete_it", CALL))
        (row,) = await setup.open_approvals()
        assert (await setup.approve(row["id"], token="ann-token")).json()["state"] == "open"
        repeated = await setup.approve(row["id"], token="ann-token")
        assert repeated.status_code == 409
        assert not waiting.done()
        assert (await setup.approve(row["id"], token="bob-token")).json()["state"] == "approved"
        assert text_of(await asyncio.wait_for(waiting, 15)).startswith("did")


async def _when(value: Any) -> Any:
    return value or None


async def test_a_second_decision_and_one_without_permission_are_refused(tmp_path: Path) -> None:
    """Bad input: repeated and foreign decisions."""
    tokens = [{**person("ann", "approver"), "may_call": True}, person("bob", "approver")]
    async with running_setup(tmp_path, tokens=tokens) as setup:
        await _decided_once(setup)


async def _decided_once(setup: Setup) -> None:
    waiting = asyncio.create_task((await setup.stateful(token="ann-token")).call("s__delete_it", CALL))
    (row,) = await setup.open_approvals()
    assert (await setup.approve(row["id"], token="")).status_code == 401
    assert (await setup.approve(row["id"], token="wrong")).status_code == 401
    own = await setup.approve(row["id"], token="ann-token")
    assert own.status_code == 403
    assert own.json()["error"] == "own_call"
    assert (await setup.deny(row["id"], token="bob-token")).status_code == 200
    late = await setup.approve(row["id"])
    assert late.status_code == 409
    assert (await setup.approve("ap_00000000000000000000000000")).status_code == 404
    assert (await asyncio.wait_for(waiting, 15))["error"]["data"]["error_type"] == "approval_rejected"


async def test_an_unanswered_request_is_denied(tmp_path: Path) -> None:
    """Bad input: an expired approval, and a decision that comes after it."""
    workflow = {"channels": ["inbox"], "timeout": "1s"}
    async with running_setup(tmp_path, approval={"ops": workflow}) as setup:
        calling = asyncio.create_task((await setup.stateful()).call("s__delete_it", CALL))
        (row,) = await setup.open_approvals()
        reply = await asyncio.wait_for(calling, 15)
        assert reply["error"]["data"]["error_type"] == "approval_expired"
        late = await setup.approve(row["id"])
        assert (late.status_code, late.json()["error"], late.json()["state"]) == (409, "already_decided", "expired")
        assert setup.sent() == []


async def test_cancelling_the_task_withdraws_the_approval_request(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call("s__delete_it", CALL, task={"ttl": 60000})
    (row,) = await setup.open_approvals()
    await caller.ask("tasks/cancel", taskId=made["result"]["taskId"])
    late = await setup.approve(row["id"])
    assert late.status_code == 409
    assert late.json()["state"] == "cancelled"
    assert setup.sent() == []


async def racing(setup: Setup, approval_id: str, count: int) -> list[int]:
    votes = [
        (setup.approve if number % 2 else setup.deny)(approval_id, token=("ann-token", "bob-token")[number // 2 % 2])
        for number in range(count)
    ]
    return [reply.status_code for reply in await asyncio.gather(*votes)]


async def test_one_of_two_hundred_racing_decisions_is_accepted(setup: Setup) -> None:
    caller = await setup.stateful({"tasks": {}})
    made = await caller.call("s__delete_it", CALL, task={"ttl": 60000})
    (row,) = await setup.open_approvals()
    statuses = await racing(setup, row["id"], 200)
    assert statuses.count(200) == 1
    assert statuses.count(409) == 199
    detail = (await setup.api("GET", f"/api/approvals/{row['id']}")).json()
    result = await caller.ask("tasks/result", taskId=made["result"]["taskId"])
    ran = len(setup.sent())
    assert ran == (1 if detail["state"] in ("approved", "used") else 0)
    assert ("result" in result) == (ran == 1)
