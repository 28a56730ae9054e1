"""A call that may run only once, whose stateless server answers with questions, and a crash at each write."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, run, virtual_time
from tests.virtual_time.callers import TASKS

from taskgate.store.open_store import OpenStore
from taskgate.store.operation import Operation
from taskgate.store.operations.tasks import Accept, Advance, Intend

FORM = {"type": "object", "properties": {"value": {"type": "string"}}}
ASKED = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": FORM}}
MAY_NOT_BE_SHOWN = {"method": "elicitation/create", "params": {"mode": "url", "message": "Open", "url": "javascript:x"}}
ROUNDS = {"one": {"a": ASKED}, "two": {"a": ASKED, "b": ASKED}, "refused": {"a": MAY_NOT_BE_SHOWN}}
ENDS = ("completed", "failed", "outcome_unknown")
MOST_WRITES = 9
"""As many as a task with two questions needs to its end."""
YES = {"action": "accept", "content": {"value": "x"}}


class Shop:
    """A server without memory: it begins whenever a call has no answers, and ends when it has some."""

    def __init__(self, questions: dict[str, Any]) -> None:
        self.begun = 0
        self.answers: list[dict[str, Any]] = []
        self.store: CrashingStore | None = None
        self.upstream = Upstream("2026")
        self._questions = questions
        self.upstream.tool("pay", self._pay)

    async def _pay(self, call: Call) -> Any:
        answers = call.params.get("inputResponses")
        if answers:
            self.answers.append(answers)
            return "paid"
        self.begun += 1
        await call.sleep(2)
        return {"resultType": "input_required", "inputRequests": self._questions}


class CrashingStore:
    """Kills the gateway before or after the write with this number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gate: Gateway, at: int, *, after: bool) -> None:
        self.writes = 0
        self.at = at
        self._gate = gate
        self._after = after
        monkeypatch.setattr(OpenStore, "do", self._crashing(OpenStore.do))

    def _crashing(self, write: Any) -> Any:
        async def around(store: OpenStore, operation: Operation[Any]) -> Any:
            if not isinstance(operation, Accept | Intend | Advance):
                return await write(store, operation)
            self.writes += 1
            mine = self.writes == self.at
            if mine and not self._after:
                await self._crash()
            answer = await write(store, operation)
            if mine:
                await self._crash()
            return answer

        return around

    async def _crash(self) -> None:
        while self._gate.life.app.store.is_committing:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)
        self._gate.crash()
        await asyncio.Event().wait()


async def one_crash(
    monkeypatch: pytest.MonkeyPatch, questions: str, way: str, generation: str, *, at: int, after: bool
) -> tuple[str, Shop]:
    shop = Shop(ROUNDS[questions])
    config = {
        "tasks": {"promote_after_ms": 1000, "grace_ms": 1000},
        "servers": {"s": {"tools": {"pay": {"class": "once"}}}},
    }
    async with Gateway(config, {"s": shop.upstream}) as gate:
        with monkeypatch.context() as patch:
            shop.store = CrashingStore(patch, gate, at, after=after)
            caller = await new_caller(gate, generation)
            as_task: dict[str, Any] = {"task": {}} if generation == "2025" else {"_meta": {"taskgate/task": True}}
            caller.begin_call("s__pay", **(as_task if way == "task" else {}))
            for _ in range(100):
                await gate.advance(1)
                if gate.process.is_dead:
                    await gate.start()
                    caller = await new_caller(gate, generation)
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    state = await state_of_the_call(gate, caller, generation)
                    if state in ENDS:
                        return state, shop
    return "none" if not shop.begun else "stuck", shop


@virtual_time
async def test_round_without_stored_answers_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller refuses the question, which is not stored as an answer, and the gateway is killed before the next round."""
    shop = Shop(ROUNDS["one"])
    config = {"servers": {"s": {"tools": {"pay": {"class": "once"}}}}}
    async with Gateway(config, {"s": shop.upstream}) as gate:
        caller = await gate.caller("2025", capabilities={**TASKS, "elicitation": {}})
        task_id = (await caller.call("s__pay", task={})).result["task"]["taskId"]
        await gate.advance(3)
        with monkeypatch.context() as patch:
            crashing = CrashingStore(patch, gate, 2, after=False)
            waiting = caller.begin("tasks/result", {"taskId": task_id})
            question = await waiting.message(0)
            await caller.post({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "no"}}).done()
            await gate.advance(5)
        assert (gate.process.is_dead, crashing.writes) == (True, 2)
        await gate.start()
        await gate.advance(10)
        (row,) = (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]
        assert (row["state"], row["executed"]) == ("failed", "maybe")
        assert (shop.begun, shop.answers) == (1, [])


async def new_caller(gate: Gateway, generation: str) -> Any:
    capabilities = {**(TASKS if generation == "2025" else TASKS_EXTENSION), "elicitation": {}}
    return await gate.caller(generation, capabilities=capabilities, answers={"elicitation/create": YES})


async def state_of_the_call(gate: Gateway, caller: Any, generation: str) -> str:
    """The state of the only task, after its questions were answered."""
    found = (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]
    if found and found[0]["state"] == "input_required":
        await answer(caller, generation, found[0]["id"])
    return str(found[0]["state"]) if found else ""


async def answer(caller: Any, generation: str, task_id: str) -> None:
    if generation == "2025":
        caller.begin("tasks/result", {"taskId": task_id})
        return
    shown = (await caller.request("tasks/get", {"taskId": task_id})).result
    responses = dict.fromkeys(shown.get("inputRequests", {}), YES)
    await caller.request("tasks/update", {"taskId": task_id, "inputResponses": responses})


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("way", ["task", "plain"])
@pytest.mark.parametrize("questions", ROUNDS)
@pytest.mark.parametrize("after", [False, True])
def test_no_round_is_sent_twice(
    monkeypatch: pytest.MonkeyPatch, questions: str, way: str, generation: str, after: bool
) -> None:
    for at in range(1, MOST_WRITES + 1):
        ended, shop = run(lambda at=at: one_crash(monkeypatch, questions, way, generation, at=at, after=after))  # type: ignore[misc]
        assert shop.begun <= 1, at
        # A plain call that is not stored yet is lost with its caller's connection.
        assert ended in (*ENDS, "stuck" if (way, at, after) == ("plain", 1, False) else "none"), at
        assert len(shop.answers) <= 1
        # A server that asked two questions in one round gets both answers.
        assert all(set(given) == set(ROUNDS[questions]) for given in shop.answers), at


@pytest.mark.parametrize("questions", ROUNDS)
@pytest.mark.parametrize("way", ["task", "plain"])
@pytest.mark.parametrize("generation", ["2025", "2026"])
def test_without_a_crash_every_round_is_sent(
    monkeypatch: pytest.MonkeyPatch, questions: str, way: str, generation: str
) -> None:
    ended, shop = run(lambda: one_crash(monkeypatch, questions, way, generation, at=10_000, after=True))
    assert (ended, shop.begun, len(shop.answers)) == ("completed", 1, 1)
    assert shop.store is not None
    assert shop.store.writes <= MOST_WRITES
