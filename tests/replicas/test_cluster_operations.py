"""What a cluster does to gateways, done to processes: a rolling update, a grace period that is too short, and a lost node.

The order is that of Kubernetes with deploy/kubernetes: the address of a pod is removed from the balancer (preStop waits for that),
then SIGTERM, then SIGKILL when the grace period has passed. A lost node is SIGKILL first; its address is removed later.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.harness.raw_client import RawClient
from tests.replicas.test_two_gateways import OVER, TASKS
from tests.replicas.three_gateways import LONG_LEASE, Replicas, three_replicas

DEADLINE_S = 90
FORWARDED = {"grace_ms": 60_000, "promote_after_ms": 60_000}
"""Calls stay plain calls while the test runs, unless they ask to be tasks."""


async def until_begun(replicas: Replicas, call: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not replicas.ledger.count(call):
            await asyncio.sleep(0.05)


async def begin_task(url: str, call: str, seconds: float, tool: str = "once") -> str:
    async with RawClient(url, capabilities={"elicitation": {}}) as caller:
        answer = await caller.call(f"books__{tool}", {"call": call, "seconds": seconds}, task={"ttl": 600_000})
        task_id: str = answer.result["task"]["taskId"]
        return task_id


async def ended_task(url: str, task_id: str) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S), RawClient(url, stateless=True, capabilities=TASKS) as caller:
        while True:
            shown = (await caller.request("tasks/get", {"taskId": task_id})).result
            if shown["status"] in OVER:
                return shown
            await asyncio.sleep(0.1)


PAUSE_S = 0.02


@dataclass
class Load:
    """A caller of each generation that calls through the balancer, one call after another, with pauses that leave the processors
    to the gateways."""

    replicas: Replicas
    replies: dict[str, dict[str, Any]] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        ended = asyncio.Event()
        callers = [asyncio.create_task(self._call(stateless, ended)) for stateless in (True, False)]
        try:
            yield
        finally:
            ended.set()
            await asyncio.wait_for(asyncio.gather(*callers), DEADLINE_S)

    async def _call(self, stateless: bool, ended: asyncio.Event) -> None:
        async with RawClient(self.replicas.url, stateless=stateless) as caller:
            for number in itertools.count():
                name = f"{'stateless' if stateless else 'session'}-{number}"
                self.replies[name] = (await caller.call("books__once", {"call": name})).reply
                if ended.is_set():
                    return
                await asyncio.sleep(PAUSE_S)

    def failed(self) -> dict[str, dict[str, Any]]:
        return {name: reply for name, reply in self.replies.items() if "result" not in reply}


async def test_rolling_update_fails_no_call_and_repeats_none(tmp_path: Path) -> None:
    async with three_replicas(
        tmp_path, launcher=LONG_LEASE, tasks=FORWARDED, limits={"drain_timeout": "60s"}
    ) as replicas:
        load, tasks = Load(replicas), {}
        async with load.running():
            for number, gateway in enumerate(replicas.gateways):
                in_flight, task = f"in-flight-{number}", f"task-{number}"
                async with RawClient(gateway.url, stateless=True) as caller:
                    call = asyncio.create_task(caller.call("books__once", {"call": in_flight, "seconds": 2}))
                    await until_begun(replicas, in_flight)
                    tasks[task] = await begin_task(gateway.url, task, 1)
                    replicas.balancer.ports.remove(gateway.port)  # preStop waits for this
                    code = await gateway.stop()
                    assert (code, "result" in (await call).reply) == (0, True)
                await gateway.start()
                replicas.balancer.ports.append(gateway.port)
        assert load.failed() == {}
        assert len(load.replies) > 6
        shown = {task: await ended_task(replicas.url, task_id) for task, task_id in tasks.items()}
        assert {task: one["status"] for task, one in shown.items()} == dict.fromkeys(tasks, "completed")
        executed = {call: len(runs) for call, runs in replicas.ledger.executions().items()}
        assert executed == dict.fromkeys([*load.replies, *tasks, *(f"in-flight-{n}" for n in range(3))], 1)


@pytest.mark.parametrize("stateless", [True, False], ids=["2026", "2025"])
async def test_call_longer_than_the_drain_ends_before_the_grace_period(tmp_path: Path, stateless: bool) -> None:
    """`limits.drain_timeout` is shorter than the grace period: the caller gets an error that states what is known."""
    async with three_replicas(
        tmp_path, launcher=LONG_LEASE, number=1, tasks=FORWARDED, limits={"drain_timeout": "1s"}
    ) as replicas:
        (gateway,) = replicas.gateways
        async with RawClient(gateway.url, stateless=stateless) as caller:
            call = asyncio.create_task(caller.call("books__once", {"call": "long", "seconds": 60}))
            await until_begun(replicas, "long")
            assert await gateway.stop() == 0
            reply = (await asyncio.wait_for(call, DEADLINE_S)).reply
        assert reply["error"]["data"]["executed"] == "maybe"
        assert replicas.ledger.count("long") == 1


async def test_grace_period_that_is_too_short_repeats_nothing(tmp_path: Path) -> None:
    """SIGKILL during the drain: the connection breaks, and another gateway reports the task as unknown."""
    async with three_replicas(tmp_path, number=2, tasks=FORWARDED, limits={"drain_timeout": "60s"}) as replicas:
        leaving, staying = replicas.gateways
        task_id = await begin_task(leaving.url, "task", 30)
        await until_begun(replicas, "task")
        async with RawClient(leaving.url, stateless=True) as caller:
            call = asyncio.create_task(caller.call("books__once", {"call": "plain", "seconds": 30}))
            await until_begun(replicas, "plain")
            replicas.balancer.ports.remove(leaving.port)
            os.kill(leaving.pid, signal.SIGTERM)
            await leaving.kill()
            with pytest.raises(httpx2.TransportError):
                await asyncio.wait_for(call, DEADLINE_S)
        shown = await ended_task(staying.url, task_id)
        assert "outcome_unknown" in json.dumps(shown)
        assert [replicas.ledger.count(name) for name in ("task", "plain")] == [1, 1]


async def test_lost_node_loses_plain_calls_only_and_repeats_nothing(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, tasks=FORWARDED) as replicas:
        lost, *others = replicas.gateways
        once = await begin_task(lost.url, "once", 30)
        repeatable = await begin_task(lost.url, "repeatable", 2, tool="repeatable")
        for name in ("once", "repeatable"):
            await until_begun(replicas, name)
        async with RawClient(lost.url) as session, RawClient(lost.url, stateless=True) as caller:
            call = asyncio.create_task(caller.call("books__once", {"call": "plain", "seconds": 30}))
            await until_begun(replicas, "plain")
            await lost.kill()
            with pytest.raises(httpx2.TransportError):
                await asyncio.wait_for(call, DEADLINE_S)
            # The balancer still has the address: it finds no listener there and connects to another gateway.
            session.url = replicas.url
            after = await asyncio.wait_for(_until_answered(session, "after"), DEADLINE_S)
            assert "result" in after
            replicas.balancer.ports.remove(lost.port)
            assert "result" in (await session.call("books__once", {"call": "removed"})).reply
        assert "outcome_unknown" in json.dumps(await ended_task(others[0].url, once))
        assert (await ended_task(others[1].url, repeatable))["status"] == "completed"
        counts = {call: len(runs) for call, runs in replicas.ledger.executions().items()}
        assert counts.pop("repeatable") == 2, "declared as repeatable, so another gateway sent it again"
        assert counts == {"once": 1, "plain": 1, "after": 1, "removed": 1}


async def _until_answered(session: RawClient, name: str) -> dict[str, Any]:
    """Until the lease of the lost gateway has expired, its sessions are rejected as not executed."""
    while True:
        with contextlib.suppress(httpx2.TransportError):
            reply = (await session.call("books__once", {"call": name})).reply
            if "result" in reply:
                return reply
            assert reply["error"]["data"]["executed"] == "no", reply
        await asyncio.sleep(0.2)
