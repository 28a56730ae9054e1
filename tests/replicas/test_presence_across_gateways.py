"""A caller that is seen by one gateway is present for an approval that is given at another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.replicas.in_process import TASKS, HeldGateway, Setup, gateways, until

pytestmark = pytest.mark.timeout(240)
RULES = {"rules": [{"match": "books:once", "action": "approve"}]}
# So long that no pause of the machine makes a caller count as disconnected.
TASK_SETTINGS = {"grace_ms": 150, "approval_poll_interval_ms": 60_000}


async def held(setup: Setup, gateway: HeldGateway) -> str:
    async with gateway.caller(capabilities=TASKS) as caller:
        made = await caller.call("books__once", {"call": "c1", "seconds": 0})
        task_id: str = made.result["taskId"]
        return task_id


async def card(gateway: HeldGateway) -> dict[str, Any]:
    (row,) = (await gateway.operator("GET", "/api/v1/approvals")).json()
    shown: dict[str, Any] = (await gateway.operator("GET", f"/api/v1/approvals/{row['id']}")).json()
    return shown


async def approved(gateway: HeldGateway) -> bool:
    """Whether the reply to the approver states that the call runs now."""
    reply = await gateway.operator("POST", f"/api/v1/approvals/{(await card(gateway))['id']}/approve", {})
    starts: bool = reply.json()["starts"]
    return starts


async def state(gateway: HeldGateway, task_id: str) -> str:
    found: str = (await gateway.operator("GET", f"/api/v1/tasks/{task_id}")).json()["state"]
    return found


@pytest.mark.parametrize(("decides", "polled"), [(0, 1), (1, 0), (1, 1)])
async def test_poll_at_another_gateway_makes_an_approved_call_run_at_once(
    tmp_path: Path, decides: int, polled: int
) -> None:
    async with gateways(tmp_path, governance=RULES, tasks=TASK_SETTINGS) as setup:
        task_id, decider = await held(setup, setup.a), setup.gateways[decides]
        assert (await card(decider))["starts_on_approval"] is False
        async with setup.gateways[polled].caller(capabilities=TASKS) as caller:
            await caller.request("tasks/get", {"taskId": task_id})

        async def is_present() -> bool:
            return (await card(decider))["starts_on_approval"] is True

        await until(is_present)
        assert await approved(decider) is True

        async def is_over() -> bool:
            return await state(decider, task_id) == "completed"

        await until(is_over)
        assert setup.ledger.count("c1") == 1


async def test_open_stream_at_another_gateway_makes_an_approved_call_run_at_once(tmp_path: Path) -> None:
    async with gateways(tmp_path, governance=RULES, tasks=TASK_SETTINGS) as setup:
        task_id = await held(setup, setup.a)
        async with setup.b.caller(capabilities=TASKS) as caller:
            wanted = {"notifications": {"taskIds": [task_id]}}
            listening = asyncio.create_task(caller.request("subscriptions/listen", wanted))

            async def is_present() -> bool:
                return (await card(setup.a))["starts_on_approval"] is True

            await until(is_present)
            assert await approved(setup.a) is True

            async def is_over() -> bool:
                return await state(setup.a, task_id) == "completed"

            await until(is_over)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        assert setup.ledger.count("c1") == 1


async def test_caller_that_no_gateway_sees_is_waited_for(tmp_path: Path) -> None:
    async with gateways(tmp_path, governance=RULES, tasks=TASK_SETTINGS) as setup:
        task_id = await held(setup, setup.a)
        assert await approved(setup.b) is False
        assert await state(setup.a, task_id) == "approved"
        assert (await setup.ended(setup.b, task_id))["status"] == "completed"
        assert setup.ledger.count("c1") == 1
