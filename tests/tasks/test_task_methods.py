"""The task methods on the wire, in both generations: what is refused, what is the same for everybody, what happens once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.activity.callers import PREFIX, Failed, HttpSession, http_session, http_stateless
from tests.chaos.crash_setup import Setup, running_setup
from tests.harness.replies import messages

from taskgate import clock

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60), pytest.mark.virtual_time]
TASKS: dict[str, Any] = {"tasks": {}}
EXTENSION: dict[str, Any] = {"extensions": {f"{PREFIX}tasks": {}}}
MAX_TTL_MS = 86_400_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    async with running_setup(tmp_path_factory.mktemp("methods")) as ready:
        yield ready


def called(tool: str, call: str, seconds: float = 0, **more: Any) -> dict[str, Any]:
    return {"name": f"books__{tool}", "arguments": {"call": call, "seconds": seconds}, **more}


async def begun(caller: HttpSession, tool: str, call: str, seconds: float = 0, **more: Any) -> str:
    created = await caller.ask("tools/call", called(tool, call, seconds, task={"ttl": 60_000}, **more))
    return str(created["task"]["taskId"])


async def refused(caller: Any, method: str, params: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises(Failed) as failed:
        await caller.ask(method, params)
    return dict(failed.value.error)


@pytest.mark.parametrize("task", ["yes", [], 7, None, {"ttl": "60000"}, {"ttl": 1.5}, {"ttl": True}, {"ttl": [1]}])
async def test_a_malformed_task_is_refused_and_nothing_runs(setup: Setup, task: Any) -> None:
    """EC-SEP-001."""
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        error = await refused(caller, "tools/call", called("once", f"malformed {task}", task=task))
        assert error["code"] == -32602
        assert error["data"]["executed"] == "no"
    assert setup.ledger.count(f"malformed {task}") == 0


@pytest.mark.parametrize("ttl", [0, -1, -86_400_000])
async def test_a_ttl_that_is_not_positive_is_refused(setup: Setup, ttl: int) -> None:
    """EC-SEP-002."""
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        error = await refused(caller, "tools/call", called("once", f"ttl {ttl}", task={"ttl": ttl}))
        assert (error["code"], error["data"]["error_type"]) == (-32602, "invalid_params")
    assert setup.ledger.count(f"ttl {ttl}") == 0


@pytest.mark.parametrize(
    ("asked", "given"), [(None, 600_000), (1, 1), (5000, 5000), (MAX_TTL_MS, MAX_TTL_MS), (10**15, MAX_TTL_MS)]
)
async def test_the_ttl_is_reported_as_asked_and_clamped_to_the_maximum(
    setup: Setup, asked: int | None, given: int
) -> None:
    """EC-SEP-003: clamped, with a warning in the log."""
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        wanted = {} if asked is None else {"ttl": asked}
        created = await caller.ask("tools/call", called("read", f"clamp {asked}", task=wanted))
        assert created["task"]["ttl"] == given
        assert (await caller.ask("tasks/get", {"taskId": created["taskId"]}))["ttl"] == given
    assert ("ttl clamped" in setup.gateway.log) or asked != 10**15


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize(
    "task_id", ["tg_01JZZZZZZZZZZZZZZZZZZZZZZZ", "tg_", "", "book-1", "up_eA.00", "'; DROP TABLE tasks; --", "x" * 5000]
)
async def test_an_invented_id_is_unknown(setup: Setup, method: str, task_id: str) -> None:
    """EC-SEP-005, EC-SEP-006 and EC-SEP-007, by method."""
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        error = await refused(caller, method, {"taskId": task_id})
        assert (error["code"], error["data"]["error_type"]) == (-32602, "unknown_task")


async def test_a_cancelled_or_finished_task_cannot_be_cancelled_again(setup: Setup) -> None:
    """EC-SEP-008."""
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        slow = await begun(caller, "once", "cancel twice", seconds=30)
        cancelled = await caller.ask("tasks/cancel", {"taskId": slow, "reason": "changed my mind"})
        assert cancelled["status"] == "cancelled"
        assert "changed my mind" in cancelled["statusMessage"]
        assert (await refused(caller, "tasks/cancel", {"taskId": slow}))["code"] == -32602
        quick = await begun(caller, "once", "cancel late")
        await caller.ask("tasks/result", {"taskId": quick})
        assert (await refused(caller, "tasks/cancel", {"taskId": quick}))["code"] == -32602
        ended = await caller.ask("tasks/result", {"taskId": slow})
        assert ended["isError"] is True


@pytest.mark.parametrize("tool", ["once", "once_task"])
async def test_a_cancel_reaches_the_upstream(setup: Setup, tool: str) -> None:
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        before, call = setup.ledger.cancels(), f"to be cancelled {tool}"
        task_id = await begun(caller, tool, call, seconds=30)
        await until(lambda: setup.ledger.count(call) == 1)
        asked = clock.monotonic()
        await caller.ask("tasks/cancel", {"taskId": task_id})
        assert clock.monotonic() - asked < 2
        await until(lambda: setup.ledger.cancels() > before)


async def until(true: Any, within: float = 10.0) -> None:
    """Wait for something that another process will do."""
    end = clock.monotonic() + within
    while not true():
        assert clock.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


async def test_a_result_request_of_a_running_task_is_answered_at_its_end(setup: Setup) -> None:
    """EC-SEP-009."""
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        task_id = await begun(caller, "once", "blocks", seconds=0.6)
        started = clock.monotonic()
        result = await caller.ask("tasks/result", {"taskId": task_id})
        assert clock.monotonic() - started > 0.3
        assert "blocks ran" in result["content"][0]["text"]
        assert result["_meta"][f"{PREFIX}related-task"] == {"taskId": task_id}
        shown = await caller.ask("tasks/get", {"taskId": task_id})
        assert shown["status"] == "completed"
        assert f"{PREFIX}related-task" not in shown.get("_meta", {})


async def test_fifty_readers_share_one_execution_and_get_the_same_bytes(setup: Setup) -> None:
    """Bad input: a result asked for 50 times at once."""
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        task_id = await begun(caller, "once", "fifty", seconds=0.3)
        params = {"taskId": task_id}
        answers = await asyncio.gather(*(caller.ask("tasks/result", params) for _ in range(50)))
        assert len({json.dumps(answer, sort_keys=True) for answer in answers}) == 1
    assert setup.ledger.count("fifty") == 1


async def test_a_task_outlives_the_session_that_made_it(setup: Setup) -> None:
    async with http_session(setup.gateway, capabilities=TASKS) as first:
        task_id = await begun(first, "once_task", "outlives", seconds=0.5)
        async with httpx2.AsyncClient() as http:
            assert (await http.delete(setup.gateway.url, headers=first.headers)).status_code == 200
    async with http_session(setup.gateway, capabilities=TASKS) as second:
        result = await second.ask("tasks/result", {"taskId": task_id})
        assert "outlives ran" in result["content"][0]["text"]
    assert setup.ledger.count("outlives") == 1


async def test_polls_that_can_only_be_abuse_are_refused(setup: Setup) -> None:
    async with http_session(setup.gateway, capabilities=TASKS) as caller:
        task_id = await begun(caller, "once", "abused", seconds=1.0)
        asking = (caller.ask("tasks/get", {"taskId": task_id}) for _ in range(200))
        refusals = [
            str(answer)
            for answer in await asyncio.gather(*asking, return_exceptions=True)
            if isinstance(answer, Failed)
        ]
        assert all(text.startswith("-32013: ") for text in refusals)
        assert (await caller.ask("tasks/result", {"taskId": task_id}))["isError"] is False


async def test_an_early_poll_is_held_until_something_changes(tmp_path: Path) -> None:
    more = {"tasks": {"poll_interval_ms": 20_000}}
    async with running_setup(tmp_path, more=more) as setup, http_session(setup.gateway, capabilities=TASKS) as caller:
        task_id = await begun(caller, "once", "c1", seconds=1.5)
        started, polls, status = clock.monotonic(), 0, "working"
        while status == "working":
            shown = await caller.ask("tasks/get", {"taskId": task_id})
            polls, status = polls + 1, shown["status"]
        assert shown["pollInterval"] == 20_000
        assert (status, clock.monotonic() - started < 15) == ("completed", True)
        # Not held, there would be hundreds.
        assert polls <= 5


async def test_the_list_shows_only_what_its_caller_made_page_by_page(setup: Setup) -> None:
    async with (
        http_session(setup.gateway, capabilities=TASKS) as ann,
        http_session(setup.gateway, capabilities=TASKS) as bob,
    ):
        made = [await begun(ann, "read", f"listed {number}") for number in range(5)]
        other = await begun(bob, "read", "not ann's")
        seen: list[Any] = []
        cursor: dict[str, Any] = {}
        while True:
            page = await ann.ask("tasks/list", {"limit": 2, **cursor})
            seen += [row["taskId"] for row in page["tasks"]]
            assert all(row["toolName"] == "books__read" for row in page["tasks"])
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert (sorted(seen), other in seen) == (sorted(made), False)
        for wrong in ("", "x", "eyJ9", cursor["cursor"][:-2] + "AA", 7):
            assert (await refused(ann, "tasks/list", {"cursor": wrong}))["code"] == -32602
        # A cursor is bound to its caller: it is invalid for others.
        assert (await refused(bob, "tasks/list", cursor))["code"] == -32602


async def test_stateless_task_methods_require_the_extension(setup: Setup) -> None:
    async with http_stateless(setup.gateway) as caller:
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert (await refused(caller, method, {"taskId": "tg_1", "inputResponses": {}}))["code"] == -32021
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        for method in ("tasks/list", "tasks/result", "tasks/subscribe"):
            assert (await refused(caller, method, {"taskId": "tg_1"}))["code"] == -32601
        assert (await refused(caller, "tasks/get", {"taskId": "tg_1"}))["code"] == -32602
        listening = {"notifications": {"taskIds": ["tg_1"]}}
    async with http_stateless(setup.gateway) as caller:
        assert (await refused(caller, "subscriptions/listen", listening))["code"] == -32021


async def test_unknown_keys_of_an_update_are_ignored(setup: Setup) -> None:
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        handle = await caller.ask("tools/call", called("once", "update", seconds=1.0))
        assert handle["resultType"] == "task"
        params = {"taskId": handle["taskId"], "inputResponses": {"nobody": {"action": "accept"}}}
        assert (await caller.ask("tasks/update", params))["resultType"] == "complete"
        assert (await caller.ask("tasks/get", {"taskId": handle["taskId"]}))["status"] == "working"
        assert (await refused(caller, "tasks/update", {"taskId": handle["taskId"]}))["code"] == -32602
        for _ in range(2):
            assert await caller.ask("tasks/cancel", {"taskId": handle["taskId"]}) == {"resultType": "complete"}


async def test_a_stateless_caller_gets_task_updates_on_a_subscription(setup: Setup) -> None:
    async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller:
        handle = await caller.ask("tools/call", called("once", "listened", seconds=0.6))
        received = []
        async with httpx2.AsyncClient(timeout=20) as http:
            meta = {f"{PREFIX}protocolVersion": "2026-07-28", f"{PREFIX}clientCapabilities": EXTENSION}
            params = {"notifications": {"taskIds": [handle["taskId"], "tg_unknown"]}, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
            headers = {
                "Accept": "application/json, text/event-stream",
                "MCP-Protocol-Version": "2026-07-28",
                "Mcp-Method": "subscriptions/listen",
            }
            async with http.stream("POST", setup.gateway.url, json=body, headers=headers) as reply:
                async for message in messages(reply):
                    received.append(message)
                    if message["params"].get("status") == "completed":
                        break
        assert received[0]["params"]["notifications"] == {"taskIds": [handle["taskId"]]}
        assert "listened ran" in received[-1]["params"]["result"]["content"][0]["text"]
        assert all(message["params"]["_meta"][f"{PREFIX}subscriptionId"] == 1 for message in received)


async def test_a_session_gets_the_status_of_its_tasks_on_its_stream(setup: Setup) -> None:
    async with http_session(setup.gateway, capabilities=TASKS) as caller, httpx2.AsyncClient(timeout=20) as http:
        async with http.stream("GET", setup.gateway.url, headers=caller.headers) as stream:
            task_id = await begun(caller, "once", "heard", seconds=0.2)
            received: list[str] = []
            async for message in messages(stream):
                if message.get("method") == "notifications/tasks/status" and message["params"]["taskId"] == task_id:
                    assert f"{PREFIX}related-task" not in message["params"].get("_meta", {})
                    received.append(message["params"]["status"])
                if "completed" in received:
                    break
        assert received[0] == "working"
