"""Idempotency keys, limits, other callers, time and full disks: what a task survives and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import resource
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.activity.callers import Failed, HttpSession, call_json, http_session, http_stateless
from tests.chaos.crash_setup import Setup, running_setup
from tests.tasks.test_task_methods import EXTENSION, TASKS, begun, called, refused, until

from taskgate import clock

pytestmark = [pytest.mark.timeout(60), pytest.mark.virtual_time]
KEY: dict[str, Any] = {"_meta": {"taskgate/idempotencyKey": "order-7"}}


@pytest.mark.real_processes
async def test_the_same_key_is_the_same_call(tmp_path: Path) -> None:
    """After its result has expired, its caller gets the outcome of the task; other ids are unknown."""
    async with running_setup(tmp_path) as setup:
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            first = await begun(caller, "once", "order", **KEY)
            result = await caller.ask("tasks/result", {"taskId": first})
            assert await begun(caller, "once", "order", **KEY) == first
            plain = await caller.ask("tools/call", called("once", "order", **KEY))
            assert plain["content"] == result["content"]
            other = await refused(caller, "tools/call", called("once", "another order", **KEY))
            assert (other["code"], other["data"]["error_type"]) == (-32602, "idempotency_conflict")
            assert other["data"]["executed"] == "no"
            caller.headers["Idempotency-Key"] = "order-7"
            assert await begun(caller, "once", "order") == first
            caller.headers["Idempotency-Key"] = "order-8"
            assert await begun(caller, "once", "order") != first
        async with http_stateless(setup.gateway, capabilities=EXTENSION) as caller_2026:
            await caller_2026.ask("tools/call", called("once", "order"))
        await until(lambda: setup.ledger.count("order") == 3)
        await setup.gateway.stop()
        await setup.gateway.start_again("clock+7200")
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            gone = await refused(caller, "tools/call", called("once", "order", **KEY))
            assert (gone["data"]["error_type"], gone["data"]["executed"]) == ("result_expired", "yes")
            unknown = await refused(caller, "tasks/get", {"taskId": "tg_01JZZZZZZZZZZZZZZZZZZZZZZZ"})
            assert unknown["data"]["error_type"] == "unknown_task"
            expired = (await refused(caller, "tasks/get", {"taskId": first}))["data"]
            assert (expired["error_type"], expired["executed"], expired["outcome"]) == ("result_expired", "yes", "ok")
        assert setup.ledger.count("order") == 3


def without_reference(error: dict[str, Any]) -> dict[str, Any]:
    return {**error, "data": {key: value for key, value in error["data"].items() if key != "correlation_id"}}


async def test_a_task_of_another_caller_is_unknown(tmp_path: Path) -> None:
    """Bad input: foreign ids look like unknown ones."""
    tokens = [{"id": who, "sha256": hashlib.sha256(who.encode()).hexdigest()} for who in ("ann", "bob")]
    async with running_setup(tmp_path, more={"tokens": tokens}) as setup, httpx2.AsyncClient(timeout=20) as http:
        ann, bob = (HttpSession(http, setup.gateway.url, token=who) for who in ("ann", "bob"))
        await ann.open(TASKS)
        await bob.open(TASKS)
        task_id = await begun(ann, "once", "ann's own", seconds=5)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            foreign = await refused(bob, method, {"taskId": task_id})
            unknown = await refused(bob, method, {"taskId": "tg_01JZZZZZZZZZZZZZZZZZZZZZZZ"})
            assert without_reference(foreign) == without_reference(unknown)
        assert (await bob.ask("tasks/list"))["tasks"] == []
        assert [row["taskId"] for row in (await ann.ask("tasks/list"))["tasks"]] == [task_id]
        # Tasks belong to their principal, not to a session: another session of Ann's finds hers.
        again = HttpSession(http, setup.gateway.url, token="ann")
        await again.open(TASKS)
        assert (await again.ask("tasks/cancel", {"taskId": task_id}))["status"] == "cancelled"


async def test_open_tasks_of_a_caller_are_limited(tmp_path: Path) -> None:
    more = {"limits": {"open_tasks_per_caller": 3, "drain_timeout": "1s"}}
    async with running_setup(tmp_path, more=more) as setup, http_session(setup.gateway, capabilities=TASKS) as caller:
        made = [await begun(caller, "once", f"open {number}", seconds=20) for number in range(3)]
        with pytest.raises(Failed) as failed:
            await begun(caller, "once", "one too many")
        data = failed.value.error["data"]
        assert (data["error_type"], data["limit"]) == ("overloaded", "open_tasks_per_caller")
        async with http_session(setup.gateway, capabilities=TASKS) as other:
            # Without an identity each session has the limit; all of one address have ten times as much.
            await begun(other, "once", "in another session")
        await caller.ask("tasks/cancel", {"taskId": made[0]})
        await begun(caller, "once", "room again")
    assert setup.ledger.count("one too many") == 0


def limit_files(setup: Setup, size: int) -> None:
    """What a full disk looks like to one process: no file may grow beyond this."""
    resource.prlimit(setup.gateway.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.real_processes
async def test_a_full_disk_acknowledges_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """Bad input: disk full."""
    async with running_setup(tmp_path) as setup, http_session(setup.gateway, capabilities=TASKS) as caller:
        running = await begun(caller, "once", "before", seconds=0.5)
        await until(lambda: setup.ledger.count("before") == 1)
        limit_files(setup, 1)
        error = await refused(caller, "tools/call", called("once", "during", task={}))
        assert (error["code"], error["data"]["error_type"]) == (-32603, "store_unavailable")
        assert error["data"]["executed"] == "no"
        assert not await setup.gateway.is_ready()
        # A plain call writes nothing, so it is not affected.
        assert "plain ran" in (await caller.ask("tools/call", called("read", "plain")))["content"][0]["text"]
        await asyncio.sleep(0.6)
        limit_files(setup, resource.RLIM_INFINITY)
        ended = await caller.ask("tasks/result", {"taskId": running})
        assert "before ran" in ended["content"][0]["text"]
        after = await begun(caller, "once", "after")
        assert "after ran" in (await caller.ask("tasks/result", {"taskId": after}))["content"][0]["text"]
    assert [setup.ledger.count(call) for call in ("before", "during", "plain", "after")] == [1, 0, 1, 1]


async def test_a_drain_waits_for_calls_that_may_not_be_repeated(tmp_path: Path) -> None:
    async with running_setup(tmp_path, more={"limits": {"drain_timeout": "10s"}}) as setup:
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            task_id = await begun(caller, "once", "almost done", seconds=1.0)
            await until(lambda: setup.ledger.count("almost done") == 1)
        assert await setup.gateway.stop() == 0
        await setup.gateway.start_again()
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            ended = await caller.ask("tasks/result", {"taskId": task_id})
            assert "almost done ran" in ended["content"][0]["text"]
        assert setup.ledger.count("almost done") == 1


async def test_a_run_past_its_deadline_is_unknown_or_failed_by_class(tmp_path: Path) -> None:
    more = {"tasks": {"execution_timeout_ms": 400, "poll_interval_ms": 100}}
    async with running_setup(tmp_path, more=more) as setup, http_session(setup.gateway, capabilities=TASKS) as caller:
        for tool in ("once", "read", "once_task"):
            task_id = await begun(caller, tool, f"late {tool}", seconds=30)
            error = await refused(caller, "tasks/result", {"taskId": task_id})
            assert (error["data"]["error_type"], error["data"]["executed"]) == ("upstream_timeout", "maybe"), tool
            assert (await caller.ask("tasks/get", {"taskId": task_id}))["status"] == "failed"
            assert setup.ledger.count(f"late {tool}") == 1
        await until(lambda: setup.ledger.cancels() >= 3)


async def test_a_changed_upstream_is_listed_again_after_a_reconnect(tmp_path: Path) -> None:
    """EC-SEP-010: the list and its task support are fetched again."""
    async with running_setup(tmp_path) as setup, http_session(setup.gateway) as caller:

        async def listed() -> list[str]:
            names = [tool["name"] for tool in (await caller.ask("tools/list"))["tools"]]
            return [name for name in names if name.startswith("books__")]

        assert len(await listed()) == 6
        await caller.ask("tools/call", called("read", "before"))
        await setup.replace_upstream("empty")
        # The new program does not know the session: nothing was executed, so the call is made again in a new one.
        assert "after ran" in (await caller.ask("tools/call", called("once", "after")))["content"][0]["text"]
        end = clock.monotonic() + 10
        while await listed():
            assert clock.monotonic() < end
            await asyncio.sleep(0.05)
    assert setup.ledger.count("after") == 1


@pytest.mark.parametrize(("tool", "status"), [("once_task", "failed"), ("read_task", "completed")])
async def test_a_task_unknown_to_its_upstream_is_recovered_by_its_class(tmp_path: Path, tool: str, status: str) -> None:
    async with running_setup(tmp_path) as setup:
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            task_id = await begun(caller, tool, "forgotten", seconds=1.5)
            await until(lambda: setup.ledger.count("forgotten") == 1)
            await setup.replace_upstream("2025")
            try:
                ended = await caller.ask("tasks/result", {"taskId": task_id})
            except Failed as failed:
                ended = dict(failed.error)
            assert (await caller.ask("tasks/get", {"taskId": task_id}))["status"] == status, ended
        assert setup.ledger.count("forgotten") == (1 if tool == "once_task" else 2)


@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_an_upstream_task_is_resumed_in_its_session(tmp_path: Path, ending: str) -> None:
    async with running_setup(tmp_path) as setup:
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            task_id = await begun(caller, "once_task", "over a restart", seconds=2.5)
            await until(lambda: setup.ledger.count("over a restart") == 1)
        await getattr(setup.gateway, ending)()
        await setup.gateway.start_again()
        async with http_session(setup.gateway, capabilities=TASKS) as caller:
            ended = await caller.ask("tasks/result", {"taskId": task_id})
            assert "over a restart ran" in ended["content"][0]["text"]
        assert setup.ledger.count("over a restart") == 1


async def test_a_client_without_tasks_follows_its_call_after_a_crash(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        async with http_session(setup.gateway) as caller:
            reply = await caller.ask("tools/call", called("read", "plain and slow", seconds=0.5))
            text = reply["content"][0]["text"]
            assert reply["isError"] is False
            task_id = next(word.strip(".") for word in text.split() if word.startswith("tg_"))
        await setup.gateway.kill()
        await setup.gateway.start_again()
        async with http_session(setup.gateway) as caller:
            found: dict[str, Any] = {}
            while "plain and slow ran" not in found.get("text", ""):
                found = await call_json(caller, "get_task_result", task_id=task_id)
