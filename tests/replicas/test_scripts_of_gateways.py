"""Scripts on gateways that share a PostgreSQL store: another one continues a script, if its interpreter can load the snapshot."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from tests.activity.callers import HttpSession
from tests.harness.plain_http import NO_TLS
from tests.replicas.in_process import OVER, TASKS, HeldGateway, Setup, gateways, until

from taskgate.assembly import scripts
from taskgate.gateway import other_gateways
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.recovery import Recovery
from taskgate.scripts.monty_interpreter import MontyInterpreter
from taskgate.store.operations.task_queries import FindTask

pytest.importorskip("pydantic_monty")
TIMEOUT_S = 120
CODE = (
    "first = await books.read(call='before')\nlast = await books.once(call='after')\n['ended', first != '', last != '']"
)
CONFIG: dict[str, Any] = {
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on"}},
    "governance": {"rules": [{"match": "once", "action": "approve"}]},
}


class Upgraded(MontyInterpreter):
    @property
    def version(self) -> str:
        return f"{super().version}-upgraded"


class Absent(MontyInterpreter):
    @property
    def version(self) -> str:
        return ""


@asynccontextmanager
async def setup_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *interpreters: type[MontyInterpreter]
) -> AsyncIterator[Setup]:
    """Gateways with these interpreters. A script of the first waits for an approval."""
    start = HeldGateway.start

    async def start_with_interpreter(self: HeldGateway) -> None:
        with patch.object(scripts, "interpreter", interpreters[int(self.folder.name[1:])]):
            await start(self)

    monkeypatch.setattr(HeldGateway, "start", start_with_interpreter)
    async with gateways(folder, number=len(interpreters), **CONFIG) as setup:
        yield setup


async def waiting_script(setup: Setup) -> str:
    async with setup.a.caller(stateless=False) as caller:
        begun = await caller.call("run_script", {"code": CODE}, task={"ttl": 600_000})
        task: str = begun.result["task"]["taskId"]
    await until(lambda: approvals_at(setup.a))
    return task


async def approvals_at(gateway: HeldGateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gateway.operator("GET", "/api/approvals")).json()
    return found


async def owner_of(gateway: HeldGateway, task: str) -> str:
    found = await gateway.store.ask(FindTask(task))
    assert found is not None
    return found.owner


def leave_claims_to(monkeypatch: pytest.MonkeyPatch, gateway: HeldGateway) -> None:
    """No other gateway takes over the tasks of one that has ended."""
    claim = Recovery.take_over_dead

    async def claim_if_chosen(self: Recovery) -> int:
        return await claim(self) if self._records.store is gateway.store else 0

    monkeypatch.setattr(Recovery, "take_over_dead", claim_if_chosen)


async def approved_result(setup: Setup, gateway: HeldGateway, task: str) -> Any:
    [waiting] = await approvals_at(gateway)
    assert (await gateway.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})).status_code == 200
    ended = await setup.ended(gateway, task)
    assert ended["status"] == "completed", ended
    return ended["result"]["structuredContent"]["result"]


@pytest.mark.timeout(300)
async def test_another_gateway_continues_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with setup_of(tmp_path, monkeypatch, MontyInterpreter, MontyInterpreter) as setup:
        task = await waiting_script(setup)
        await setup.a.stop()
        assert await approved_result(setup, setup.b, task) == ["ended", True, True]
        assert (setup.ledger.count("before"), setup.ledger.count("after")) == (1, 1)


@pytest.mark.timeout(300)
async def test_script_is_left_to_a_gateway_that_can_load_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with setup_of(tmp_path, monkeypatch, MontyInterpreter, Upgraded, MontyInterpreter) as setup:
        task = await waiting_script(setup)
        upgraded, able = setup.gateways[1:]
        leave_claims_to(monkeypatch, upgraded)
        await setup.a.stop()

        async def handed_over() -> bool:
            return await owner_of(able, task) == able.store.ownership.owner

        await until(handed_over)
        assert await approved_result(setup, able, task) == ["ended", True, True]
        assert (setup.ledger.count("before"), setup.ledger.count("after")) == (1, 1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("other", [Upgraded, Absent])
async def test_script_fails_when_no_living_gateway_can_load_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: type[MontyInterpreter]
) -> None:
    async with setup_of(tmp_path, monkeypatch, MontyInterpreter, other) as setup:
        task = await waiting_script(setup)
        await setup.a.stop()
        ended = await setup.ended(setup.b, task)
        assert ended["status"] == "failed"
        data = ended["error"]["data"]
        assert (data["error_type"], data["executed"]) == ("script_not_resumable", "yes")
        assert [call["tool"] for call in data["calls"]["executed"]] == ["books__read"]
        assert await approvals_at(setup.b) == []
        assert (setup.ledger.count("before"), setup.ledger.count("after")) == (1, 0)


@pytest.mark.timeout(300)
async def test_gateway_without_an_interpreter_leaves_a_new_script_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with setup_of(tmp_path, monkeypatch, Absent, MontyInterpreter) as setup:
        task = await waiting_script(setup)
        assert await owner_of(setup.b, task) == setup.b.store.ownership.owner
        async with setup.b.caller(capabilities=TASKS) as caller:
            assert (await caller.request("tasks/get", {"taskId": task})).result["status"] == "working"
        assert await approved_result(setup, setup.b, task) == ["ended", True, True]


@pytest.mark.timeout(300)
async def test_question_reaches_a_caller_that_waits_for_the_result_at_another_gateway(tmp_path: Path) -> None:
    tokens = [{"id": "ann", "sha256": hashlib.sha256(b"ann").hexdigest()}]
    async with (
        gateways(tmp_path, number=2, tokens=tokens, **CONFIG) as setup,
        httpx2.AsyncClient(timeout=TIMEOUT_S, verify=NO_TLS) as http,
    ):
        starting, waiting = (HttpSession(http, gateway.url, "ann") for gateway in setup.gateways)
        await starting.open({})
        await waiting.open({"elicitation": {"form": {}}})
        code = "[await ask('Which colour?'), await ask('And the second?')]"
        params = {"name": "run_script", "arguments": {"code": code}, "task": {"ttl": 600_000}}
        task = (await starting.ask("tools/call", params))["task"]["taskId"]
        waiting.answers["elicitation/create"] = {"action": "accept", "content": {"answer": "blue"}}
        result = await asyncio.wait_for(waiting.ask("tasks/result", {"taskId": task}), TIMEOUT_S)
        assert result["structuredContent"]["result"] == ["blue", "blue"]
        texts = [asked["params"]["message"].partition("\n\n")[2] for asked in waiting.asked]
        assert texts == ["Which colour?", "And the second?"]


@pytest.mark.timeout(300)
async def test_first_of_two_answers_at_two_gateways_is_what_the_script_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_noticed(_self: TaskQuestions, _task_id: str) -> None:
        """The announcement of the other gateway is late."""

    monkeypatch.setattr(TaskQuestions, "check_stored_answers", not_noticed)
    async with (
        gateways(tmp_path, number=2, **CONFIG) as setup,
        setup.a.caller(capabilities=TASKS) as at_owner,
        setup.b.caller(capabilities=TASKS) as elsewhere,
    ):
        begun = await at_owner.call(
            "run_script", {"code": "[await ask('Which colour?'), await ask('And which size?')]"}
        )
        task = begun.result["taskId"]

        async def asked() -> list[str]:
            shown = (await at_owner.request("tasks/get", {"taskId": task})).result
            return list(shown.get("inputRequests", {}))

        [first] = await until(asked)
        for caller, colour in ((elsewhere, "red"), (at_owner, "blue")):
            answer = {first: {"action": "accept", "content": {"answer": colour}}}
            await caller.request("tasks/update", {"taskId": task, "inputResponses": answer})

        async def second() -> list[str]:
            return [key for key in await asked() if key != first]

        [size] = await until(second)
        answer = {size: {"action": "accept", "content": {"answer": "xl"}}}
        await at_owner.request("tasks/update", {"taskId": task, "inputResponses": answer})
        ended = await setup.ended(setup.a, task)
        assert ended["result"]["structuredContent"]["result"] == ["red", "xl"]


@pytest.mark.timeout(300)
async def test_operator_stops_a_script_that_runs_at_another_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway that runs it learns it from the announcement: it does not poll in this test."""
    monkeypatch.setattr(other_gateways, "POLL_S", 86_400.0)
    tokens = [{"id": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("ann", "bob")]
    code = """await books.once(call='{0} first')
await books.once(call='{0} second', seconds=86_400)
await books.once(call='{0} third')"""
    async with (
        gateways(tmp_path, kind="2025", tokens=tokens, scopes=CONFIG["scopes"]) as setup,
        httpx2.AsyncClient(timeout=TIMEOUT_S, verify=NO_TLS) as http,
    ):
        begun = {}
        for name in ("ann", "bob"):
            caller = HttpSession(http, setup.a.url, name)
            await caller.open({})
            params = {"name": "run_script", "arguments": {"code": code.format(name)}, "task": {"ttl": 600_000}}
            begun[name] = (await caller.ask("tools/call", params))["task"]["taskId"]
            await until(partial(setup.ledger.count, f"{name} second"))

        async def calls_of(name: str) -> list[tuple[int, str]]:
            shown = (await setup.a.operator("GET", f"/api/v1/tasks/{begun[name]}")).json()
            return [(call["line"], call["state"]) for call in shown["script_calls"]["calls"]]

        async def is_over() -> bool:
            return (await calls_of("ann"))[-1][1] in OVER

        assert await owner_of(setup.b, begun["ann"]) == setup.a.store.ownership.owner
        reply = await setup.b.operator("POST", "/api/v1/scripts/stop", {"principal": "ann"})
        [stopped] = reply.json()["stopped"]
        assert (stopped["id"], stopped["state"]) == (begun["ann"], "cancelled")
        assert stopped["ran"] == "executed, or sent: books__once (2)"
        await until(setup.ledger.cancels)  # sent by the run at A
        await until(is_over)
        assert await calls_of("ann") == [(1, "completed"), (2, "cancelled")]
        assert await calls_of("bob") == [(1, "completed"), (2, "running")]
        assert (setup.ledger.count("ann third"), setup.ledger.cancels()) == (0, 1)
