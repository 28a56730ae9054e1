"""An approved call runs at once if its caller is still there, and the approver is told which it is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.seam import Call, Exchange, Gateway, Upstream, seam

GOVERNED: dict[str, Any] = {
    "governance": {"rules": [{"match": "pay", "action": "approve", "approval": "ops"}]},
    "approval": {"ops": {"timeout": "2h"}},
}
TASKS = {"tasks": {"requests": {"tools": {"call": {}}}}}


def bank_server() -> Upstream:
    bank = Upstream("2025")

    @bank.tool("pay")
    async def pay(call: Call) -> str:
        return "paid"

    return bank


async def asked(caller: Any) -> str:
    held = await caller.call("bank__pay", task={"ttl": 7_200_000})
    task_id: str = held.result["task"]["taskId"]
    return task_id


async def approved(gate: Gateway) -> str:
    (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
    said: str = (await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})).json()["message"]
    await gate.advance(1)
    return said


@pytest.mark.parametrize(("silent_s", "runs"), [(30, True), (44, True), (300, False)])
@seam
async def test_a_caller_that_polls_gets_its_call_run_on_the_yes(silent_s: float, runs: bool) -> None:
    """It is told to look every 15 s while a person is asked; three intervals without a look mean that it is gone."""
    bank = bank_server()
    async with Gateway(GOVERNED, {"bank": bank}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        task_id = await asked(caller)
        await caller.request("tasks/get", {"taskId": task_id})
        await gate.advance(silent_s)
        said = await approved(gate)
        assert bank.count("pay") == (1 if runs else 0)
        assert ("It runs now." in said, "asks for it again; it last asked" in said) == (runs, not runs)
        await caller.request("tasks/result", {"taskId": task_id})
        assert bank.count("pay") == 1


@seam
async def test_a_caller_that_never_looked_runs_nothing_until_it_does() -> None:
    bank = bank_server()
    async with Gateway(GOVERNED, {"bank": bank}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        task_id = await asked(caller)
        assert "and has not asked since" in await approved(gate)
        await gate.advance(60)
        assert bank.count("pay") == 0
        await caller.request("tasks/get", {"taskId": task_id})
        await gate.advance(1)
        assert bank.count("pay") == 1


@seam
async def test_a_caller_with_its_result_request_open_is_there() -> None:
    bank = bank_server()
    async with Gateway(GOVERNED, {"bank": bank}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        waiting: Exchange = caller.begin("tasks/result", {"taskId": await asked(caller)})
        await gate.advance(600)
        assert "It runs now." in await approved(gate)
        assert (await waiting.done()).text == "paid"


@seam
async def test_a_held_call_that_was_told_so_runs_by_itself() -> None:
    bank = bank_server()
    async with Gateway(GOVERNED, {"bank": bank}) as gate:
        caller = await gate.caller("2025")
        held = caller.begin_call("bank__pay")
        await gate.advance(50)
        assert "runs by itself once it is approved" in held.reply.text
        await caller.close()
        await gate.advance(300)
        assert "It runs now." in await approved(gate)
        assert bank.count("pay") == 1
