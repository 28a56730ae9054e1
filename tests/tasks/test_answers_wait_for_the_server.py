"""A stateless caller returns with answers and waits for the server: its call continues, and does not begin again as a task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.virtual_time import Call, Caller, Exchange, Gateway, Upstream, virtual_time

FORM = {"type": "object", "properties": {"value": {"type": "string"}}}
ASKED: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {"message": "Which account?", "requestedSchema": FORM},
}
GIVEN = {"action": "accept", "content": {"value": "private"}}
ABLE: dict[str, Any] = {"elicitation": {"form": {}}}
TASKS: dict[str, Any] = {**ABLE, "extensions": {"io.modelcontextprotocol/tasks": {}}}
KINDS = ["2026 with state", "2026 without state", "2025"]


@dataclass
class Payments:
    """A server that asks before it pays. It takes one call at a time."""

    kind: str
    pays_s: float = 0.0
    begun: int = 0
    paid: int = 0

    def upstream(self) -> Upstream:
        upstream = Upstream(self.kind[:4])
        upstream.tool("pay", self._pay if self.kind.startswith("2026") else self._pay_stateful)
        upstream.tool("wait", self._wait)
        return upstream

    async def _pay(self, call: Call) -> Any:
        if call.params.get("inputResponses") == {"account": GIVEN}:
            return await self._finish(call)
        self.begun += 1
        state = {"requestState": "asked"} if self.kind == "2026 with state" else {}
        return {"resultType": "input_required", "inputRequests": {"account": ASKED}, **state}

    async def _pay_stateful(self, call: Call) -> str:
        self.begun += 1
        assert (await call.ask("elicitation/create", ASKED["params"]))["content"] == GIVEN["content"]
        return await self._finish(call)

    async def _finish(self, call: Call) -> str:
        await call.sleep(self.pays_s)
        self.paid += 1
        return "paid"

    async def _wait(self, call: Call) -> str:
        await call.sleep(call.arguments["seconds"])
        return "waited"


@asynccontextmanager
async def asked(
    payments: Payments, busy_s: float, capabilities: dict[str, Any] = ABLE
) -> AsyncIterator[tuple[Gateway, Caller, dict[str, Any]]]:
    """A caller that was asked, and the answers with which it may return. Then the server is busy for so long."""
    config = {"servers": {"s": {"tools": {"pay": {"class": "once"}}, "budgets": {"max_concurrency": 1}}}}
    async with Gateway(config, {"s": payments.upstream()}) as gate:
        caller = await gate.caller("2026", capabilities=capabilities)
        question = (await caller.call("s__pay", {})).result
        answers = {"inputResponses": dict.fromkeys(question["inputRequests"], GIVEN)}
        if "requestState" in question:
            answers["requestState"] = question["requestState"]
        other = await gate.caller("2026")
        other.begin_call("s__wait", {"seconds": busy_s})
        await gate.advance(1)
        yield gate, caller, answers


def return_with(caller: Caller, answers: dict[str, Any]) -> Exchange:
    return caller.begin_call("s__pay", {}, **answers)


@pytest.mark.parametrize("kind", KINDS)
@virtual_time
async def test_answers_that_waited_too_long_are_given_back_and_continue_the_call_later(kind: str) -> None:
    payments = Payments(kind)
    async with asked(payments, busy_s=100) as (gate, caller, answers):
        call = return_with(caller, answers)
        error = (await call.done()).error
        assert 49.9 <= call.took < 51
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("overloaded", "maybe")
        assert "were not sent" in error["message"]
        await gate.advance(60)
        assert (payments.begun, payments.paid) == (1, 0)
        assert (await return_with(caller, answers).done()).text == "paid"
        assert (payments.begun, payments.paid) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capabilities", [ABLE, TASKS], ids=["plain", "accepts tasks"])
@virtual_time
async def test_answers_are_sent_when_the_server_is_free(kind: str, capabilities: dict[str, Any]) -> None:
    """A caller that accepts tasks does not get one after `tasks.grace_ms` either."""
    payments = Payments(kind)
    async with asked(payments, 40, capabilities) as (_, caller, answers):
        assert (await return_with(caller, answers).done()).text == "paid"
        assert (payments.begun, payments.paid) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
@virtual_time
async def test_call_that_is_slow_after_its_answers_were_sent_is_promoted(kind: str) -> None:
    payments = Payments(kind, pays_s=30)
    async with asked(payments, busy_s=40) as (gate, caller, answers):
        call = return_with(caller, answers)
        assert "continues as task" in (await call.done()).text
        assert 49.9 <= call.took < 51
        await gate.advance(60)
        assert (payments.begun, payments.paid) == (1, 1)
        states = [row["state"] for row in (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]]
        assert states == ["completed"]


@virtual_time
async def test_call_that_waited_shortly_is_promoted_after_the_usual_time_from_when_it_was_sent() -> None:
    payments = Payments("2026 with state", pays_s=60)
    async with asked(payments, busy_s=4) as (_, caller, answers):
        call = return_with(caller, answers)
        assert "continues as task" in (await call.done()).text
        assert 47.9 <= call.took < 49


@virtual_time
async def test_caller_that_disconnects_while_its_answers_wait_leaves_no_timer() -> None:
    payments = Payments("2026 with state")
    async with asked(payments, busy_s=100) as (gate, caller, answers):
        call = return_with(caller, answers)
        await gate.advance(10)
        await call.disconnect()
        await gate.advance(120)
        assert (payments.begun, payments.paid) == (1, 0)
        assert (await return_with(caller, answers).done()).text == "paid"
