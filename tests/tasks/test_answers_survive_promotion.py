"""An answer that was acknowledged is kept with the task that the call became, however shortly before or after: the gateway may be
killed, and no question is asked again.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.virtual_time import Call, Caller, Gateway, Upstream, until, virtual_time

from taskgate import clock
from taskgate.gateway.governance.approvals import Approvals

TOKEN = "agent-token-0123456789abcdef"
CONFIG: dict[str, Any] = {
    "tasks": {"promote_after_ms": 1000},
    "servers": {"notes": {"trust_annotations": True}},
    "scopes": {"default": {"default_servers": ["*"], "mode": "both"}},
    "tokens": [{"id": "agent", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}],
}
FORM = {"type": "object", "properties": {"value": {"type": "string"}}}
REPEATABLE: dict[str, Any] = {"annotations": {"readOnlyHint": True, "idempotentHint": True}}


def form(message: str) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": FORM}}


def server(seconds: float = 0.0) -> Upstream:
    """Asks two questions in one round, counts them, and runs for a while after it has both answers."""
    notes = Upstream("2026")

    @notes.tool("paint", **REPEATABLE)  # type: ignore[untyped-decorator]
    async def paint(call: Call) -> Any:
        given = call.params.get("inputResponses") or {}
        if not given:
            asked = {"colour": form("Which colour?"), "size": form("Which size?")}
            return {"resultType": "input_required", "inputRequests": asked, "requestState": "first"}
        assert call.params["requestState"] == "first"
        await call.sleep(seconds)
        return " ".join(given[key]["content"]["value"] for key in ("colour", "size") if key in given)

    return notes


def times_asked(notes: Upstream) -> int:
    calls = [message for message in notes.received if message.get("method") == "tools/call"]
    return sum("inputResponses" not in message["params"] for message in calls)


async def questions(caller: Caller) -> dict[str, str]:
    """What waits for an answer, and under which id."""
    shown = (await caller.call_json("get_elicitations"))["elicitations"]
    return {row["params"]["message"]: row["request_id"] for row in shown}


async def answer_in_round(caller: Caller, asked: str, value: str) -> None:
    answer = {"request_id": (await questions(caller))[asked], "action": "accept", "content": {"value": value}}
    assert (await caller.call_json("respond_to_elicitation", **answer))["success"] is True


async def painted(gate: Gateway, caller: Caller, task_id: str) -> str:
    await gate.advance(40)
    reply = await caller.call("get_task_result", {"task_id": task_id})
    return str(reply.result["content"][0]["text"])


async def killed(gate: Gateway, generation: str = "2025") -> Caller:
    gate.crash()
    await gate.start()
    # It serves before it has resumed all tasks that it took over.
    await gate.advance(0.5)
    return await gate.caller(generation, token=TOKEN)


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_answer_given_during_promotion_is_not_requested_again(moment: str, generation: str) -> None:
    @virtual_time
    async def scenario() -> None:
        notes = server()
        async with Gateway(CONFIG, {"notes": notes}) as gate:
            caller = await gate.caller(generation, token=TOKEN)
            call = caller.begin_call("notes__paint")
            await gate.advance(0.5)
            if moment == "before":
                await answer_in_round(caller, "Which colour?", "blue")
            task_id = (await call.done()).result["structuredContent"]["taskgate_notice"]["task_id"]
            if moment == "after":
                await answer_in_round(caller, "Which colour?", "blue")
            caller = await killed(gate, generation)
            assert list(await questions(caller)) == ["Which size?"]
            await answer_in_round(caller, "Which size?", "large")
            assert await painted(gate, caller, task_id) == "blue large"
            assert times_asked(notes) == 1

    scenario()


@virtual_time
async def test_answers_sent_before_promotion_are_sent_again_and_not_requested_again() -> None:
    notes = server(seconds=30)
    async with Gateway(CONFIG, {"notes": notes}) as gate:
        caller = await gate.caller("2025", token=TOKEN)
        call = caller.begin_call("notes__paint")
        await gate.advance(0.5)
        await answer_in_round(caller, "Which colour?", "blue")
        await answer_in_round(caller, "Which size?", "large")
        task_id = (await call.done()).result["structuredContent"]["taskgate_notice"]["task_id"]
        caller = await killed(gate)
        assert await questions(caller) == {}
        assert await painted(gate, caller, task_id) == "blue large"
        assert times_asked(notes) == 1


@virtual_time
async def test_the_last_answer_survives_a_crash_before_the_next_round_is_sent() -> None:
    notes = server(seconds=30)
    async with Gateway(CONFIG, {"notes": notes}) as gate:
        caller = await gate.caller("2025", token=TOKEN)
        call = caller.begin_call("notes__paint")
        task_id = (await call.done()).result["structuredContent"]["taskgate_notice"]["task_id"]
        await answer_in_round(caller, "Which colour?", "blue")
        await answer_in_round(caller, "Which size?", "large")
        caller = await killed(gate)
        assert await questions(caller) == {}
        assert await painted(gate, caller, task_id) == "blue large"
        assert times_asked(notes) == 1


def answer_colour_only(params: dict[str, Any]) -> dict[str, Any] | None:
    return {"action": "accept", "content": {"value": "blue"}} if params["message"] == "Which colour?" else None


@virtual_time
async def test_an_answer_on_the_sessions_own_stream_is_stored_with_the_task() -> None:
    """A caller that answers questions natively, in one round: it answers the first question, and the second when the call is a
    task."""
    notes = server()
    async with Gateway(CONFIG, {"notes": notes}) as gate:
        answers = {"elicitation/create": answer_colour_only}
        caller = await gate.caller("2025", token=TOKEN, capabilities={"elicitation": {}}, answers=answers)
        task_id = (await caller.call("notes__paint")).result["structuredContent"]["taskgate_notice"]["task_id"]
        assert len(caller.asked) == 2
        caller = await killed(gate)
        assert list(await questions(caller)) == ["Which size?"]
        await answer_in_round(caller, "Which size?", "large")
        assert await painted(gate, caller, task_id) == "blue large"
        assert times_asked(notes) == 1


async def answered(caller: Caller, asked: str, value: str) -> None:
    """The caller's own response to what it was asked, acknowledged."""
    message = next(one for one in caller.asked if one["params"]["message"] == asked)
    result = {"action": "accept", "content": {"value": value}}
    reply = await caller.post({"jsonrpc": "2.0", "id": message["id"], "result": result}).done()
    assert reply.status == 202


@virtual_time
async def test_an_acknowledged_answer_to_the_last_question_of_a_promoted_call_is_stored() -> None:
    notes = server(seconds=30)
    async with Gateway(CONFIG, {"notes": notes}) as gate:
        answers = {"elicitation/create": lambda _params: None}
        caller = await gate.caller("2025", token=TOKEN, capabilities={"elicitation": {}}, answers=answers)
        task_id = (await caller.call("notes__paint")).result["structuredContent"]["taskgate_notice"]["task_id"]
        await answered(caller, "Which colour?", "blue")
        await answered(caller, "Which size?", "large")
        caller = await killed(gate)
        assert await questions(caller) == {}
        assert await painted(gate, caller, task_id) == "blue large"
        assert times_asked(notes) == 1


@virtual_time
async def test_an_acknowledged_answer_to_the_last_question_of_a_task_is_stored() -> None:
    notes = server(seconds=30)
    async with Gateway(CONFIG, {"notes": notes}) as gate:
        answers = {"elicitation/create": lambda _params: None}
        able: dict[str, Any] = {"elicitation": {}, "tasks": {}}
        caller = await gate.caller("2025", token=TOKEN, capabilities=able, answers=answers)
        task_id = (await caller.call("notes__paint", task={})).result["task"]["taskId"]
        waiting = caller.begin("tasks/result", {"taskId": task_id})
        await until(lambda: len(caller.asked) == 2)
        await answered(caller, "Which colour?", "blue")
        await answered(caller, "Which size?", "large")
        await waiting.disconnect()
        caller = await killed(gate)
        assert await questions(caller) == {}
        assert await painted(gate, caller, task_id) == "blue large"
        assert times_asked(notes) == 1


def test_an_acknowledged_approval_by_the_caller_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with a store that takes a second."""
    decide = Approvals.decide

    async def slowly(*args: Any, **more: Any) -> Any:
        await clock.sleep(1)
        return await decide(*args, **more)

    monkeypatch.setattr(Approvals, "decide", slowly)
    form_here = {"channels": ["inbox", {"type": "elicitation", "mode": "form"}], "self_approval": True}
    rules = [{"match": "paint", "action": "approve", "approval": "self"}]
    config = {**CONFIG, "approval": {"self": form_here}, "governance": {"rules": rules}}

    @virtual_time
    async def scenario() -> None:
        async with Gateway(config, {"notes": server()}) as gate:
            answers = {"elicitation/create": lambda _params: None}
            able: dict[str, Any] = {"elicitation": {}, "tasks": {}}
            caller = await gate.caller("2025", token=TOKEN, capabilities=able, answers=answers)
            task_id = (await caller.call("notes__paint", task={})).result["task"]["taskId"]
            waiting = caller.begin("tasks/result", {"taskId": task_id})
            await until(lambda: len(caller.asked) == 1)
            word = {"action": "accept", "content": {"decision": "approve"}}
            reply = caller.post({"jsonrpc": "2.0", "id": caller.asked[0]["id"], "result": word})
            await gate.advance(0.9)
            assert not reply.is_done
            assert (await reply.done()).status == 202
            assert (await gate.operator("GET", "/api/approvals")).json() == []
            await waiting.disconnect()

    scenario()
