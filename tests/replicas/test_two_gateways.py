"""Two gateways on one PostgreSQL store, and an upstream that records executions: a change at one gateway takes effect at both."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.chaos.crash_setup import LedgerFile, configuration, upstream_command
from tests.harness.commands import command
from tests.harness.gateway import Gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.postgres import migrated_url
from tests.harness.programs import free_port, listening, start, until_ready
from tests.harness.raw_client import RawClient
from tests.replicas.three_gateways import LONG_LEASE, PRODUCT

TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
DEADLINE_S = 90
OVER = ("completed", "failed", "cancelled")


@dataclass
class Pair:
    a: Gateway
    b: Gateway
    ledger: LedgerFile

    async def task_shown_by(self, gateway: Gateway, task_id: str) -> dict[str, Any]:
        async with RawClient(gateway.url, stateless=True, capabilities=TASKS) as caller:
            return (await caller.request("tasks/get", {"taskId": task_id})).result

    async def until(self, gateway: Gateway, task_id: str, *states: str) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                shown = await self.task_shown_by(gateway, task_id)
                if shown["status"] in states:
                    return shown
                await asyncio.sleep(0.1)

    async def begin(self, gateway: Gateway, tool: str, call: str, seconds: float = 0) -> str:
        """A call that becomes a task at this gateway."""
        async with RawClient(gateway.url, capabilities={"elicitation": {}}) as caller:
            answer = await caller.call(f"books__{tool}", {"call": call, "seconds": seconds}, task={"ttl": 600_000})
            found: str = answer.result["task"]["taskId"]
            return found

    async def began(self, call: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.ledger.count(call):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def pair(
    folder: Path,
    generation: str = "2026",
    passthrough: bool = False,
    budgets: Any = None,
    launcher: tuple[str, ...] = PRODUCT,
    **more: Any,
) -> AsyncIterator[Pair]:
    port, ledger, url = free_port(), LedgerFile(folder / "ledger.jsonl"), migrated_url()
    upstream = await start(upstream_command(port, ledger, generation))
    gateways = []
    for name in ("a", "b"):
        place = folder / name
        (place / "state").mkdir(parents=True)
        gateway = Gateway(place, free_port(), launcher=launcher)
        options = configuration(port)
        if budgets is not None:
            options["servers"]["books"]["budgets"] = budgets
        gateway.write({**options, "store": {"url": url, "unsafe_degraded_passthrough": passthrough}, **more})
        gateways.append(gateway)
    try:
        await until_ready(upstream, listening(port))
        for gateway in gateways:
            await gateway.start()
        first, second = gateways
        yield Pair(first, second, ledger)
    finally:
        for gateway in gateways:
            if gateway.program is not None and gateway.program.alive:
                await gateway.program.end(signal.SIGTERM, within=20)
        await upstream.end()


async def operator(gateway: Gateway, method: str, path: str, body: Any = None) -> httpx2.Response:
    token = (gateway.state / "operator-token").read_text().strip()
    async with httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http:
        headers = {"authorization": f"Bearer {token}"}
        return await http.request(method, f"{gateway.base}{path}", json=body, headers=headers)


async def metric(gateway: Gateway, name: str) -> float:
    lines = (await operator(gateway, "GET", "/metrics")).text.splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(name)))


async def until_metric(gateway: Gateway, name: str, value: float) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await metric(gateway, name) != value:
            await asyncio.sleep(0.1)


def alive_in(state: dict[str, Any]) -> list[bool]:
    """Of each gateway that one has seen, whether it took it for alive."""
    return [replica["alive"] for replica in state.get("replicas", ())]


async def doctor_on_gateways(gateway: Gateway) -> list[dict[str, Any]]:
    """The lines of `doctor` about the gateways on this one's store."""
    words = ("doctor", "-c", str(gateway.config), "--no-connect", "--json")
    _, output, _ = await command(*words, env={"TASKGATE_STATE_DIR": str(gateway.state)})
    return [json.loads(line) for line in output.splitlines() if '"gateway"' in line]


async def test_a_task_made_on_a_is_read_on_b_with_the_same_bytes(tmp_path: Path) -> None:
    async with pair(tmp_path, launcher=LONG_LEASE) as both:
        task_id = await both.begin(both.a, "once", "c1")
        on_b = await both.until(both.b, task_id, *OVER)
        on_a = await both.task_shown_by(both.a, task_id)
        assert on_b["status"] == "completed"
        assert on_b["result"] == on_a["result"]
        assert both.ledger.count("c1") == 1


async def test_a_cancel_on_b_stops_the_run_of_a(tmp_path: Path) -> None:
    async with pair(tmp_path, "2025", launcher=LONG_LEASE) as both:
        task_id = await both.begin(both.a, "once", "c1", seconds=60)
        await both.began("c1")
        async with RawClient(both.b.url, stateless=True, capabilities=TASKS) as caller:
            assert "error" not in (await caller.request("tasks/cancel", {"taskId": task_id})).reply
        assert (await both.until(both.a, task_id, *OVER))["status"] == "cancelled"
        async with asyncio.timeout(DEADLINE_S):
            while not both.ledger.cancels():  # sent by the run at A
                await asyncio.sleep(0.1)
        assert both.ledger.count("c1") == 1


async def test_a_vote_on_b_lets_the_task_of_a_run_once(tmp_path: Path) -> None:
    rules = {"rules": [{"match": "books:once", "action": "approve"}]}
    async with pair(tmp_path, launcher=LONG_LEASE, governance=rules, tasks={"execute_on": "approval"}) as both:
        task_id = await both.begin(both.a, "once", "c1")
        rows = (await operator(both.b, "GET", "/api/approvals")).json()
        (row,) = rows
        reply = await operator(both.b, "POST", f"/api/approvals/{row['id']}/approve", {})
        assert reply.status_code == 200, reply.text
        assert (await both.until(both.a, task_id, *OVER))["status"] == "completed"
        assert both.ledger.count("c1") == 1


async def test_an_open_console_page_of_b_shows_approvals_of_a(tmp_path: Path) -> None:
    rules = {"rules": [{"match": "books:once", "action": "approve"}]}
    async with pair(tmp_path, launcher=LONG_LEASE, governance=rules) as both:
        token = (both.b.state / "operator-token").read_text().strip()
        headers, body = {"authorization": f"Bearer {token}"}, set()
        async with (
            httpx2.AsyncClient(timeout=DEADLINE_S, verify=NO_TLS, headers=headers) as page,
            page.stream("GET", f"{both.b.base}/api/v1/events") as events,
        ):
            assert events.status_code == 200
            await both.begin(both.a, "once", "c1")
            async with asyncio.timeout(DEADLINE_S / 3):
                async for line in events.aiter_lines():
                    if line.startswith("data: "):
                        body.update(json.loads(line.removeprefix("data: "))["topics"])
                    if body >= {"inbox", "tasks"}:
                        break


async def test_an_answer_given_on_b_reaches_the_run_of_a(tmp_path: Path) -> None:
    async with pair(tmp_path, launcher=LONG_LEASE) as both:
        task_id = await both.begin(both.a, "once_ask", "c1")
        shown = await both.until(both.b, task_id, "input_required")
        answers = {key: {"action": "accept", "content": {"value": "x"}} for key in shown["inputRequests"]}
        async with RawClient(both.b.url, stateless=True, capabilities=TASKS) as caller:
            await caller.request("tasks/update", {"taskId": task_id, "inputResponses": answers})
        assert (await both.until(both.a, task_id, *OVER))["status"] == "completed"
        assert both.ledger.count("c1") == 1


@pytest.mark.parametrize("tool, ends, runs", [("read", "completed", 2), ("once", "failed", 1)])
async def test_b_takes_over_when_a_is_killed(tmp_path: Path, tool: str, ends: str, runs: int) -> None:
    """A call that may be repeated is sent again and finished; one that may not is never sent again, and its error states that."""
    async with pair(tmp_path) as both:
        task_id = await both.begin(both.a, tool, "c1", seconds=3)
        await both.began("c1")
        await both.a.kill()
        shown = await both.until(both.b, task_id, *OVER)
        assert shown["status"] == ends
        assert both.ledger.count("c1") == runs
        if tool == "once":
            assert "may or may not have" in json.dumps(shown)


async def test_each_gateway_lists_the_other_and_a_difference_of_configuration(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        async with asyncio.timeout(DEADLINE_S):
            # A machine that is busy for longer than a lease can expire the lease of either.
            while alive_in(state := (await operator(both.b, "GET", "/ready")).json()) != [True, True]:
                await asyncio.sleep(0.1)
        assert (state["same_configuration"], state["same_version"]) == (True, True)
        # The addresses of both are given on the command line, and not in the file.
        assert {replica["address"] for replica in state["replicas"]} == {
            f"127.0.0.1:{g.port}" for g in (both.a, both.b)
        }
        await until_metric(both.b, 'taskgate_replicas{state="alive"}', 2)
        await both.a.stop()
        both.a.write(both.a.config.read_text() + "\ngovernance: {rules: [{match: 'x_*', action: deny}]}\n")
        await both.a.start()
        async with asyncio.timeout(DEADLINE_S):
            while (await operator(both.b, "GET", "/ready")).json()["same_configuration"]:
                await asyncio.sleep(0.1)
        await until_metric(both.b, 'taskgate_replicas_differ{what="configuration"}', 1)
        async with asyncio.timeout(DEADLINE_S):
            while not (notes := [line for line in await doctor_on_gateways(both.b) if line["verdict"] == "note"]):
                await asyncio.sleep(0.1)
        assert len(notes) == 1
        assert "configuration differs" in notes[0]["fix"]
        # A reload changes the digest as a start does.
        both.b.write(both.a.config.read_text().replace(str(both.a.folder), str(both.b.folder)))
        os.kill(both.b.pid, signal.SIGHUP)
        async with asyncio.timeout(DEADLINE_S):
            while not (await operator(both.a, "GET", "/ready")).json()["same_configuration"]:
                await asyncio.sleep(0.1)


async def test_limits_are_divided_by_the_running_gateways(tmp_path: Path) -> None:
    """A limit of two for two gateways is one each; when one has stopped, the other one has both."""
    async with pair(tmp_path, launcher=LONG_LEASE, budgets={"max_concurrency": 2}) as both:
        first = await both.begin(both.a, "once", "c1", seconds=600)
        await both.began("c1")
        number = 2
        async with asyncio.timeout(DEADLINE_S):
            while True:  # the share is taken within a second: what still found two places is taken back
                second = await both.begin(both.a, "once", f"c{number}", seconds=600)
                while (
                    await metric(both.a, "taskgate_line_running{") + await metric(both.a, "taskgate_line_waiting{") < 2
                ):
                    await asyncio.sleep(0.1)
                if await metric(both.a, "taskgate_line_waiting{") == 1:
                    break
                await cancelled(both.a, second)
                number += 1
        assert both.ledger.count(f"c{number}") == 0
        await both.b.stop()
        await both.began(f"c{number}")
        for task_id in (first, second):
            await cancelled(both.a, task_id)


async def cancelled(gateway: Gateway, task_id: str) -> None:
    async with RawClient(gateway.url, stateless=True, capabilities=TASKS) as caller:
        await caller.request("tasks/cancel", {"taskId": task_id})
