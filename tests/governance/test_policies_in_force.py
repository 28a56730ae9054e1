"""Rules and policies while the gateway runs: reloads, the development profile, limits, and the stream of a task's status."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.governance.approval_setup import RULES, Setup, config, eventually, running_setup

pytestmark = pytest.mark.virtual_time

LOW = "permit (principal, action, resource) when { context.arguments.amount <= 100 };\n"
HIGH = "permit (principal, action, resource) when { context.arguments.amount <= 1000 };\n"
POLICY = {"rules": [{"match": "pay_*", "action": "policy", "policy_id": "p", "approval": "ops"}, *RULES]}


async def paid(setup: Setup, amount: Any) -> str:
    reply = await (await setup.stateful()).call("s__pay_it", {"amount": amount})
    return "forward" if "result" in reply else str(reply["error"]["data"]["error_type"])


@pytest.mark.real_processes
async def test_policies_are_reloaded_without_dropping_a_call_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.cedar").write_text(LOW)
    async with running_setup(tmp_path, governance=POLICY, cedar={"policies": ["./p.cedar"]}) as setup:
        assert [await paid(setup, amount) for amount in (5, 500)] == ["forward", "policy_denied"]
        stop = asyncio.Event()
        calls = asyncio.create_task(keep_calling(setup, stop))
        (tmp_path / "p.cedar").write_text(HIGH)

        async def allowed() -> bool | None:
            return await paid(setup, 500) == "forward" or None

        await eventually(allowed)
        (tmp_path / "p.cedar").write_text("permit (nonsense);")

        async def complained() -> bool | None:
            return "the old one stays in force" in setup.gateway.log or None

        await eventually(complained)
        assert await paid(setup, 500) == "forward"
        stop.set()
        assert set(await calls) == {"forward"}


async def keep_calling(setup: Setup, stop: asyncio.Event) -> list[str]:
    outcomes = []
    while not stop.is_set():
        outcomes.append(await paid(setup, 5))
    return outcomes


async def test_the_development_profile_forwards_and_reports_the_production_decision(tmp_path: Path) -> None:
    async with running_setup(tmp_path, profile="development") as setup:
        caller = await setup.stateful()
        assert "result" in await caller.call("s__delete_it", {"path": "/x"})
        assert "result" in await caller.call("s__drop_it")
        assert "DEVELOPMENT PROFILE" in setup.gateway.log
        assert "WOULD_HOLD" in setup.gateway.log
        assert "WOULD_DENY" in setup.gateway.log
        assert len(setup.sent()) == 2


async def test_pending_approvals_of_a_caller_are_limited_and_the_status_of_its_task_is_sent(tmp_path: Path) -> None:
    async with running_setup(tmp_path, limits={"pending_approvals_per_caller": 2}) as setup:
        caller = await setup.stateful({"tasks": {}})
        made = [await caller.call("s__delete_it", {"n": n}, task={"ttl": 60000}) for n in range(2)]
        refused = await caller.call("s__delete_it", {"n": 3}, task={"ttl": 60000})
        assert refused.get("status") == 503 or refused["error"]["data"]["error_type"] == "overloaded"
        other = await setup.stateful({"tasks": {}})
        # A new session is no new caller.
        assert "error" in await other.call("s__delete_it", {"n": 4}, task={"ttl": 60000})
        await follow(setup, made[0]["result"]["taskId"])


async def follow(setup: Setup, task_id: str) -> None:
    url = f"{setup.gateway.base}/api/tasks/{task_id}/events"
    headers = {"authorization": f"Bearer {setup.operator_token}"}
    row = next(r for r in await setup.open_approvals() if r["task_id"] == task_id)
    seen: list[str] = []
    async with setup.http.stream("GET", url, headers=headers, timeout=15) as response:
        assert response.headers["content-type"] == "text/event-stream"
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert event["taskId"] == task_id
                seen.append(event["status"])
                if len(seen) == 1:
                    await setup.deny(row["id"], reason="No")
    assert seen == ["input_required", "failed"]


async def test_an_unknown_workflow_in_a_reload_keeps_the_old_configuration(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup:
        rules = [{"match": "delete_*", "action": "approve", "approval": "ghosts"}]
        await setup.gateway.reload(config(tmp_path, governance={"rules": rules}))

        async def complained() -> bool | None:
            return "ghosts" in setup.gateway.log or None

        await eventually(complained)
        assert "error" in await (await setup.stateful()).call("s__drop_it")
