"""What is retried, when, and what is never retried: in virtual time, with a server that counts calls."""

from __future__ import annotations

import asyncio
import json
import signal
from email.utils import formatdate
from typing import Any

import pytest
from tests.faults.matrix import executed_in
from tests.virtual_time import Call, Gateway, Upstream, until, virtual_time
from tests.virtual_time.upstream_call import AsksInput
from tests.virtual_time.upstream_http import HttpReply

from taskgate import clock

FORM = {"type": "object", "properties": {"value": {"type": "string"}}}
QUESTION = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": FORM}}
ASKABLE: dict[str, Any] = {"elicitation": {"form": {}}}
ANSWER = {"action": "accept", "content": {"value": "blue"}}


class UnknownSession(Upstream):
    """Answers 400 to a session that it does not know, as some servers do."""

    def _request(self, method: str, headers: dict[str, str], body: bytes, reply: HttpReply) -> None:
        session = headers.get("mcp-session-id", "")
        if session and session not in self.sessions:
            reply.send(400, b"Bad Request: No valid session ID provided")
        else:
            super()._request(method, headers, body, reply)


class Asking(Upstream):
    """Its tool `t` requests a colour, and stores the answer."""

    def __init__(self) -> None:
        super().__init__("2026", tools={"t": self._asks})
        self.given: list[Any] = []

    async def _asks(self, call: Call) -> str:
        given = call.params.get("inputResponses")
        if not given:
            raise AsksInput("colour", QUESTION)
        self.given.append(given)
        return "done"

    def goes_away(self, _params: Any) -> Any:
        """Answers its question, and the server has ended before it gets the answer."""
        asyncio.get_running_loop().create_task(self.stop())
        return ANSWER


async def done(call: Call) -> str:
    return "done"


async def as_task(caller: Any, tool: str, ttl_ms: int = 600_000, **more: Any) -> str:
    reply = await caller.call(tool, {}, task={"ttl": ttl_ms}, **more)
    task_id: str = reply.result["task"]["taskId"]
    return task_id


async def result_of(caller: Any, task_id: str, seconds: float = 3000) -> dict[str, Any]:
    reply = await caller.begin("tasks/result", {"taskId": task_id}).done(seconds)
    last: dict[str, Any] = reply.last
    return last


@pytest.mark.parametrize("way", ["plain", "task"])
@pytest.mark.parametrize("server_type", [Upstream, UnknownSession])
@virtual_time
async def test_a_call_in_a_lost_session_is_sent_in_a_new_one(server_type: type[Upstream], way: str) -> None:
    server = server_type("2025", tools={"t": done})
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        await caller.call("far__t")
        server.forget_sessions()
        if way == "plain":
            reply = (await caller.call("far__t")).last
        else:
            reply = await result_of(caller, await as_task(caller, "far__t"))
        assert "done" in json.dumps(reply)
        assert server.count("t") == 2


@virtual_time
async def test_a_400_in_a_known_session_is_not_sent_again() -> None:
    server = Upstream("2025")

    async def refuses(call: Call) -> None:
        call.reply.send(400, b"what?")

    server.tool("t", refuses)
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        task_id = await as_task(caller, "far__t")
        assert executed_in(await result_of(caller, task_id)) == "maybe"
        assert executed_in((await caller.call("far__t")).last) == "maybe"
        assert server.count("t") == 2
        assert server.methods["initialize"] == 2  # the listing link's and the caller's


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_retry_after_is_honoured_once(generation: str) -> None:
    server, refusals = Upstream(generation), [1]
    times: list[float] = []

    async def busy(call: Call) -> Any:
        times.append(asyncio.get_running_loop().time())
        if refusals:
            refusals.pop()
            call.reply.send(429, b"later", {"retry-after": "7"})
            return None
        return "done"

    server.tool("t", busy)
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        reply = await result_of(caller, await as_task(caller, "far__t"))
        assert "done" in json.dumps(reply)
        assert times[1] - times[0] == pytest.approx(7, abs=0.5)
        assert "done" in (await caller.call("far__t")).text


@virtual_time
@pytest.mark.parametrize("asked", ["9" * 400, "99999999999", "Wed, 21 Oct 2099 07:28:00 GMT"])
async def test_unreasonable_retry_after_ends_the_call_without_a_retry(asked: str) -> None:
    server = Upstream("2025")

    @server.tool("t")
    async def busy(call: Call) -> None:
        call.reply.send(429, b"later", {"retry-after": asked})

    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("far__t")).result["_meta"]["taskgate/error"]["executed"] == "no"
        assert server.count("t") == 1


@virtual_time
@pytest.mark.parametrize("ahead_s", [7, -100])
async def test_retry_after_may_be_a_date(ahead_s: int) -> None:
    server, times = Upstream("2025"), list[float]()

    @server.tool("t")
    async def busy(call: Call) -> str | None:
        times.append(clock.wall())
        if len(times) > 1:
            return "done"
        call.reply.send(429, b"later", {"retry-after": formatdate(times[0] + ahead_s, usegmt=True)})
        return None

    async with Gateway({}, {"far": server}) as gate:
        assert "done" in (await (await gate.caller("2025")).call("far__t")).text
        assert times[1] - times[0] == pytest.approx(max(ahead_s, 1), abs=1)


@virtual_time
async def test_status_of_a_retried_task_does_not_claim_no_execution() -> None:
    server = Upstream("2025")

    @server.tool("t")
    async def lost(call: Call) -> str | None:
        await server.stop()
        return None

    async with Gateway({"servers": {"far": {"tools": {"t": {"class": "repeatable"}}}}}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        task_id = await as_task(caller, "far__t", 600_000)
        await gate.advance(60)
        assert server.count("t") == 1
        shown = (await caller.request("tasks/get", {"taskId": task_id})).result
        assert "will be retried" in shown["statusMessage"]
        assert "may have been executed before" in shown["statusMessage"]


@virtual_time
async def test_unsent_task_is_retried_until_ttl_and_reports_not_executed() -> None:
    server = Upstream("2025", tools={"t": done})
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        await caller.call("far__t")
        await server.stop()
        early = await as_task(caller, "far__t", 600_000)
        late = await as_task(caller, "far__t", 60_000)
        await gate.advance(120)
        ended = (await caller.request("tasks/get", {"taskId": late})).result
        assert ended["status"] == "failed"
        assert "not executed" in ended["statusMessage"]
        shown = (await caller.request("tasks/get", {"taskId": early})).result
        assert shown["status"] == "working"
        assert "will be retried" in shown["statusMessage"]
        await server.start()
        assert "done" in json.dumps(await result_of(caller, early))
        assert server.count("t") == 2


@virtual_time
async def test_execution_timeout_starts_with_the_send() -> None:
    server = Upstream("2025")

    async def slow(call: Call) -> str:
        await call.sleep(20)
        return "done"

    server.tool("t", slow)
    config = {"servers": {"far": {"budgets": {"tool_timeout_ms": 30_000}}}}
    async with Gateway(config, {"far": server}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        await server.stop()
        task_id = await as_task(caller, "far__t")
        await gate.advance(100)
        await server.start()
        assert "done" in json.dumps(await result_of(caller, task_id))


@virtual_time
async def test_idempotency_key_does_not_keep_an_unsent_failure() -> None:
    server = Upstream("2025", tools={"t": done})
    key = {"_meta": {"taskgate/idempotencyKey": "k"}}
    async with Gateway({"tasks": {"default_ttl_ms": 20_000}}, {"far": server}) as gate:
        caller = await gate.caller("2025")
        await caller.call("far__t")
        await server.stop()
        reply = (await caller.call("far__t", {}, **key)).last
        assert executed_in(reply) == "no"
        await server.start()
        await gate.advance(60)
        again = await caller.call("far__t", {}, **key)
        assert again.text == "done"
        assert (await caller.call("far__t", {}, **key)).text == "done"
        assert server.count("t") == 2


@virtual_time
async def test_failed_handshake_reports_not_executed() -> None:
    server = Upstream("2025", tools={"t": done})

    async def never(call: Call) -> None:
        call.reply.over = True
        call.reply.end.abort()

    async with Gateway({}, {"far": server}) as gate:
        first = await gate.caller("2025")
        await first.call("far__t")
        server.on("initialize", never)
        second = await gate.caller("2025")
        reply = (await second.call("far__t")).last
        assert executed_in(reply) == "no"
        assert server.count("t") == 1


@pytest.mark.parametrize("way", ["plain", "task", "keyed"])
@virtual_time
async def test_input_required_without_questions_fails_at_once(way: str) -> None:
    server, runs = Upstream("2026"), [0]

    async def silent(call: Call) -> None:
        runs[0] += 1
        result = {"resultType": "input_required", "inputRequests": {}, "requestState": "s"}
        call.reply.answer({"jsonrpc": "2.0", "id": call.message["id"], "result": result})

    server.tool("t", silent)
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025", capabilities=ASKABLE)
        if way == "task":
            reply = await result_of(caller, await as_task(caller, "far__t"))
        else:
            more = {"_meta": {"taskgate/idempotencyKey": "k"}} if way == "keyed" else {}
            reply = (await caller.call("far__t", {}, **more)).last
        assert executed_in(reply) == "maybe"
        assert runs == [1]


@virtual_time
async def test_answers_survive_a_server_outage_and_each_question_is_sent_once() -> None:
    server = Asking()
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025", capabilities=ASKABLE, answers={"elicitation/create": server.goes_away})
        task_id = await as_task(caller, "far__t")
        waiting = caller.begin("tasks/result", {"taskId": task_id})
        await until(lambda: bool(caller.asked), "the question")
        await gate.advance(40)
        assert not waiting.is_done
        await server.start()
        assert "done" in json.dumps((await waiting.done(600)).last)
        assert len(caller.asked) == 1
        assert server.given == [{"colour": ANSWER}]


@virtual_time
async def test_acknowledged_answer_is_used_after_a_crash() -> None:
    server = Asking()
    async with Gateway({}, {"far": server}) as gate:
        caller = await gate.caller("2025", capabilities=ASKABLE, answers={"elicitation/create": server.goes_away})
        task_id = await as_task(caller, "far__t")
        waiting = caller.begin("tasks/result", {"taskId": task_id})
        await until(lambda: bool(caller.asked), "the question")
        await gate.advance(5)
        gate.crash()
        with pytest.raises((asyncio.IncompleteReadError, ValueError)):
            await waiting.done()
        await server.start()
        await gate.start()
        again = await gate.caller("2025", capabilities=ASKABLE)
        assert "done" in json.dumps(await result_of(again, task_id))
        assert not again.asked
        assert server.given == [{"colour": ANSWER}]


@virtual_time
async def test_question_on_a_broken_stream_is_asked_on_the_next_one() -> None:
    server = Upstream("2025")

    async def asks(call: Call) -> str:
        return json.dumps(await call.elicit("Which colour?"))

    server.tool("t", asks)
    config = {"scopes": {"default": {"default_servers": ["*"], "mode": "both"}}}
    async with Gateway(config, {"far": server}) as gate:
        caller = await gate.caller("2025", capabilities=ASKABLE)
        caller._answer_soon = lambda message: caller.asked.append(message)
        task_id = await as_task(caller, "far__t")
        first = caller.begin("tasks/result", {"taskId": task_id})
        await until(lambda: bool(caller.asked), "the question")
        await first.disconnect()
        await gate.advance(5)
        shown = await caller.call_json("get_elicitations")
        assert "Which colour?" in json.dumps(shown)
        second = caller.begin("tasks/result", {"taskId": task_id})
        await until(lambda: len(caller.asked) == 2, "the question again")
        again = caller.asked[-1]
        await caller.post({"jsonrpc": "2.0", "id": again["id"], "result": ANSWER}).done()
        assert "blue" in json.dumps((await second.done()).last)


@pytest.mark.parametrize("way", ["plain", "task"])
@pytest.mark.parametrize("stream", [False, True])
@virtual_time
async def test_too_large_result_reports_executed_and_is_not_retried(stream: bool, way: str) -> None:
    server = Upstream("2025")

    async def large(call: Call) -> Any:
        if stream:
            call.reply.open_stream()
        return "x" * 300_000

    server.tool("t", large)
    config = {"limits": {"result_bytes": 100_000}, "servers": {"far": {"tools": {"t": {"class": "read"}}}}}
    async with Gateway(config, {"far": server}) as gate:
        caller = await gate.caller("2025")
        if way == "plain":
            reply = (await caller.call("far__t")).last
        else:
            reply = await result_of(caller, await as_task(caller, "far__t"))
        assert executed_in(reply) == "yes"
        assert "less" in json.dumps(reply)
        assert server.count("t") == 1


@virtual_time
async def test_a_drain_refuses_queued_calls_as_not_executed_and_keeps_queued_tasks() -> None:
    server = Upstream("2025")

    async def slow(call: Call) -> str:
        await call.sleep(call.arguments.get("seconds", 8))
        return "done"

    server.tool("t", slow)
    config = {"servers": {"far": {"budgets": {"max_concurrency": 1}}}, "limits": {"drain_timeout": "10s"}}
    async with Gateway(config, {"far": server}) as gate:
        caller = await gate.caller("2025")
        runs = await as_task(caller, "far__t")
        await gate.advance(1)
        queued = await as_task(caller, "far__t")
        plain = [caller.begin_call("far__t", {"seconds": 60}) for _ in range(2)]
        await gate.advance(1)
        gate.send_signal(signal.SIGTERM)
        received = [await call.done() for call in plain]
        assert gate._serving is not None
        await gate._serving
        words = sorted(executed_in(reply.last) for reply in received)
        assert words == ["maybe", "no"]
        assert server.count("t") == 2
        await gate.start()
        again = await gate.caller("2025")
        assert "done" in json.dumps(await result_of(again, runs))
        assert "done" in json.dumps(await result_of(again, queued))
        assert server.count("t") == 3
