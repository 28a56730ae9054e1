"""Runs that end although their task does not: another gateway has taken over the task, or the store failed.

What another gateway does is put into the store's answers: a store that one gateway has to itself has no other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.errors import GatewayFault
from taskgate.gateway.tasks.recovery import CLAIM_SETTLES_S
from taskgate.gateway.tasks.runs import READS_PER_TURN
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.upkeep import Claim, Recover
from taskgate.store.transaction import Transaction

READ = {"servers": {"notes": {"trust_annotations": True}}}


def slow_server() -> Upstream:
    server = Upstream()

    @server.tool("slow", annotations={"readOnlyHint": True})
    async def slow(call: Call) -> str:
        await call.sleep(float(call.arguments["seconds"]))
        return "done"

    return server


async def begun(gate: Gateway, seconds: float) -> str:
    """A task whose call takes the server this long."""
    caller = await gate.caller("2025")
    handle = (await caller.call("notes__slow", {"seconds": seconds}, task={"ttl": 3_600_000})).result["task"]
    await gate.advance(0.5)
    return str(handle["taskId"])


async def shown(gate: Gateway, task_id: str) -> dict[str, Any]:
    caller = await gate.caller("2025")
    found: dict[str, Any] = (await caller.request("tasks/get", {"taskId": task_id})).result
    return found


def tasks_of(gate: Gateway) -> Any:
    return gate.life.app.gateway.console.calls.tasks


@virtual_time
async def test_abandoned_run_releases_its_slot_and_keeps_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its result would be refused, and it would delay others for as long as its server takes."""
    server = slow_server()
    async with Gateway({"servers": {"notes": {"budgets": {"max_concurrency": 1}}}}, {"notes": server}) as gate:
        tasks = tasks_of(gate)
        first, second = await begun(gate, 3000), await begun(gate, 0.1)
        assert server.count("slow") == 1
        ask = tasks.store.ask

        async def taken_over(query: Query[Any]) -> Any:
            answer = await ask(query)
            return msgspec.structs.replace(answer, owner="gw_other") if query == FindTask(first) else answer

        monkeypatch.setattr(tasks.store, "ask", taken_over)
        await gate.life.app.gateway.lifecycle.others._check_task(first, announced=True)
        await gate.advance(1)
        assert (await shown(gate, second))["status"] == "completed", "its turn has come"
        assert not tasks.runs.is_running(first)
        assert (await shown(gate, first))["status"] == "working", "how it ends is the other gateway's to say"


@virtual_time
async def test_shutdown_check_of_many_runs_lets_other_requests_run() -> None:
    """With 14,000 queued tasks no request was answered for a third of a second."""
    count = 4 * READS_PER_TURN
    async with Gateway({"servers": {"notes": {"budgets": {"max_concurrency": 1}}}}, {"notes": slow_server()}) as gate:
        caller = await gate.caller("2025")
        for _ in range(count):
            await caller.call("notes__slow", {"seconds": 3000}, task={"ttl": 3_600_000})
        assert len(tasks_of(gate).runs) == count
        turns, settling = 0, asyncio.create_task(tasks_of(gate).runs.settle(0.0))
        while not settling.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 6


@virtual_time
async def test_tasks_of_a_claim_with_lost_reply_are_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim was committed, so no other gateway claims them, but this gateway did not learn which they are."""
    server = slow_server()
    async with Gateway(READ, {"notes": server}) as gate:
        tasks = tasks_of(gate)
        task_id = await begun(gate, 0.6)
        tasks.runs.abandon(task_id)

        def lost(_operation: Claim, _tx: Transaction) -> tuple[str, ...]:
            raise GatewayFault("store_unavailable", "The answer was lost.")

        with monkeypatch.context() as broken:
            broken.setattr(Claim, "run", lost)
            with pytest.raises(GatewayFault):
                await tasks.recovery.take_over_dead()
        await gate.advance(CLAIM_SETTLES_S - 2)
        assert ((await shown(gate, task_id))["status"], server.count("slow")) == ("working", 1)
        await gate.advance(5)
        assert ((await shown(gate, task_id))["status"], server.count("slow")) == ("completed", 2)
        running = await begun(gate, 100)
        await gate.advance(2 * CLAIM_SETTLES_S)
        assert tasks.runs.is_running(running), "it is looked for once"
        assert server.count("slow") == 3


@virtual_time
async def test_tasks_claimed_during_a_store_failure_are_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = slow_server()
    async with Gateway(READ, {"notes": server}) as gate:
        tasks = tasks_of(gate)
        task_id = await begun(gate, 0.6)
        tasks.runs.abandon(task_id)
        claims = [(task_id,), ()]

        write = tasks.store.do

        async def unreadable(operation: Operation[Any]) -> Any:
            if isinstance(operation, Claim):
                return claims.pop(0)
            if isinstance(operation, Recover):
                raise GatewayFault("store_unavailable", "The store cannot be read.")
            return await write(operation)

        with monkeypatch.context() as broken:
            broken.setattr(tasks.store, "do", unreadable)
            with pytest.raises(GatewayFault):
                await tasks.recovery.take_over_dead()
        await gate.advance(3)
        assert ((await shown(gate, task_id))["status"], server.count("slow")) == ("completed", 2)
        assert not tasks.runs.interrupted


@virtual_time
async def test_takeover_keeps_a_run_that_began_meanwhile() -> None:
    """The run began between the choice of the task and the transaction that would end it."""
    server = slow_server()
    async with Gateway({}, {"notes": server}) as gate:
        tasks = tasks_of(gate)
        task_id = await begun(gate, 5)
        page = await tasks.store.do(Recover(tasks.recovery.decide, [task_id]))
        assert page.ended == ()
        await gate.advance(10)
        assert ((await shown(gate, task_id))["status"], server.count("slow")) == ("completed", 1)
