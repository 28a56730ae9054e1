"""Requests that are not tied to a call, task ids of servers, reasons of cancellation, and logs without a level."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from tests.virtual_time import Call, Exchange, Gateway, Upstream, until, virtual_time

from taskgate.turns import LARGE_BYTES

FORM = {"message": "Which colour?", "requestedSchema": {"type": "object", "properties": {"value": {"type": "string"}}}}
BLUE = {"action": "accept", "content": {"value": "blue"}}
CAN_ANSWER: dict[str, Any] = {"elicitation": {"form": {}}}
SAMPLING: dict[str, Any] = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
    "maxTokens": 5,
}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "Hello"}, "model": "m"}
QUESTIONS: dict[str, dict[str, Any]] = {
    "elicitation/create": FORM,
    "sampling/createMessage": SAMPLING,
    "roots/list": {},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "elicitation/create": BLUE,
    "sampling/createMessage": SAMPLED,
    "roots/list": {"roots": [{"uri": "file:///tmp"}]},
}
CAN_ALL = {**CAN_ANSWER, "sampling": {}, "roots": {}}
RELATED = "io.modelcontextprotocol/related-task"


class Shop(Upstream):
    """A server whose tools only wait, and which sends questions on its GET stream, so that they are assigned to no call."""

    def __init__(self) -> None:
        super().__init__("2025")
        self.tool("wait", self._wait)

    async def _wait(self, call: Call) -> str:
        await call.sleep(call.arguments.get("seconds", 60))
        return "waited"

    async def ask_beside(self, related: str | None = None, method: str = "elicitation/create") -> dict[str, Any]:
        stream, _ = self._streams[-1]
        params = QUESTIONS[method] if related is None else {**FORM, "_meta": {RELATED: {"taskId": related}}}
        return await self._ask(stream, method, params)


def shared(**more: Any) -> dict[str, Any]:
    return {"servers": {"shop": {"instances": "shared"}}, **more}


def one_token(name: str) -> dict[str, Any]:
    digest = hashlib.sha256(f"{name}-token".encode()).hexdigest()
    return {"tokens": [{"id": name, "sha256": digest}]}


async def begin(caller: Any, shop: Shop, count: int = 1, **more: Any) -> list[Exchange]:
    """Calls that are under way at the server when this returns."""
    before = shop.count("wait")
    calls = [caller.begin_call("shop__wait", **more) for _ in range(count)]
    await until(lambda: shop.count("wait") == before + count, "the calls")
    return calls


def questions_in(exchange: Exchange) -> list[str]:
    return [message["method"] for message in exchange.reply.messages if "method" in message and "id" in message]


@pytest.mark.parametrize("method", QUESTIONS)
@pytest.mark.parametrize("with_stream", [False, True])
@virtual_time
async def test_question_beside_two_calls_of_one_session_goes_with_the_oldest(with_stream: bool, method: str) -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2025", capabilities=CAN_ALL, answers=ANSWERS)
        stream = await caller.listen() if with_stream else None
        (first,) = await begin(caller, shop)
        (second,) = await begin(caller, shop)
        assert await shop.ask_beside(method=method) == ANSWERS[method]
        assert (questions_in(first), questions_in(second)) == ([method], [])
        assert stream is None or questions_in(stream) == []


@virtual_time
async def test_question_beside_a_task_and_a_call_goes_with_the_call_and_names_no_task() -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2025", capabilities={**CAN_ALL, "tasks": {}}, answers=ANSWERS)
        (made,) = await begin(caller, shop, task={"ttl": 600_000})
        (call,) = await begin(caller, shop)
        assert await shop.ask_beside() == BLUE
        assert questions_in(call) == ["elicitation/create"]
        (asked,) = caller.asked
        assert "_meta" not in asked["params"]
        task_id = (await made.done()).result["task"]["taskId"]
        assert (await caller.request("tasks/get", {"taskId": task_id})).result["status"] == "working"


@virtual_time
async def test_question_beside_two_tasks_goes_on_the_sessions_own_stream() -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2025", capabilities={**CAN_ALL, "tasks": {}}, answers=ANSWERS)
        stream = await caller.listen()
        await begin(caller, shop, 2, task={"ttl": 600_000})
        assert await shop.ask_beside() == BLUE
        assert questions_in(stream) == ["elicitation/create"]
        (asked,) = caller.asked
        assert "_meta" not in asked["params"]


@virtual_time
async def test_question_beside_two_tasks_without_a_stream_waits_with_the_oldest() -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2025", capabilities={**CAN_ALL, "tasks": {}}, answers=ANSWERS)
        made = [(await begin(caller, shop, task={"ttl": 600_000}))[0] for _ in range(2)]
        ids = [(await one.done()).result["task"]["taskId"] for one in made]
        asking = asyncio.create_task(shop.ask_beside())
        await gate.advance(3)
        states = [(await caller.request("tasks/get", {"taskId": one})).result["status"] for one in ids]
        assert states == ["input_required", "working"]
        (row,) = (await gate.operator("GET", "/api/questions")).json()
        assert row["undecided"] is True
        assert "task_id" not in row
        waiting = caller.begin("tasks/result", {"taskId": ids[0]})
        assert await asking == BLUE
        assert questions_in(waiting) == ["elicitation/create"]
        assert [asked["params"].get("_meta") for asked in caller.asked] == [None]


@pytest.mark.parametrize("method", QUESTIONS)
@virtual_time
async def test_question_beside_two_calls_of_a_stateless_client_is_the_result_of_the_oldest(method: str) -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2026", capabilities=CAN_ALL)
        named: dict[str, Any] = {"_meta": {"taskgate/client": "desk"}}
        (first,) = await begin(caller, shop, **named)
        (second,) = await begin(caller, shop, **named)
        asking = asyncio.create_task(shop.ask_beside(method=method))
        result = (await first.done()).result
        ((key, request),) = result["inputRequests"].items()
        assert request["method"] == method
        assert not second.is_done
        caller.begin_call(
            "shop__wait", requestState=result["requestState"], inputResponses={key: ANSWERS[method]}, **named
        )
        assert await asking == ANSWERS[method]


@virtual_time
async def test_question_beside_calls_of_two_conversations_waits_in_their_principals_inbox() -> None:
    """Each open call reports that its server waits: a task in its status, a plain call when it is handed over as a task."""
    shop = Shop()
    async with Gateway(shared(**one_token("ann")), {"shop": shop}) as gate:
        callers = [
            await gate.caller("2025", capabilities={**CAN_ALL, "tasks": {}}, token="ann-token", answers=ANSWERS)
            for _ in range(2)
        ]
        streams = [await caller.listen() for caller in callers]
        (made,) = await begin(callers[0], shop, task={"ttl": 600_000})
        (plain,) = await begin(callers[1], shop)
        asking = asyncio.create_task(shop.ask_beside())
        await gate.advance(1)
        task = {"taskId": (await made.done()).result["task"]["taskId"]}
        assert "waits for an answer" in (await callers[0].request("tasks/get", task)).result["statusMessage"]
        for caller in callers:
            (row,) = (await caller.call_json("get_elicitations"))["elicitations"]
            assert (row["server"], row["undecided"]) == ("shop", True)
        await gate.advance(45)
        assert "waits for an answer" in (await plain.done()).text
        promoted = {"taskId": plain.reply.result["structuredContent"]["taskgate_notice"]["task_id"]}
        assert "waits for an answer" in (await callers[1].request("tasks/get", promoted)).result["statusMessage"]
        await callers[1].call_json("respond_to_elicitation", request_id=row["request_id"], **BLUE)
        assert await asking == BLUE
        for caller, one in ((callers[0], task), (callers[1], promoted)):
            assert "waits for an answer" not in (await caller.request("tasks/get", one)).result["statusMessage"]
        assert [questions_in(one) for one in (*streams, plain)] == [[], [], []]


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
@virtual_time
async def test_open_calls_report_that_the_operator_was_asked_without_the_question(method: str) -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        callers = [await gate.caller("2025", capabilities={**CAN_ALL, "tasks": {}}) for _ in range(2)]
        for caller in callers:
            await begin(caller, shop, task={"ttl": 600_000})
        asking = asyncio.create_task(shop.ask_beside(method=method))
        await gate.advance(1)
        for caller in callers:
            (row,) = (await caller.request("tasks/list")).result["tasks"]
            assert "operator" in row["statusMessage"]
            assert "colour" not in row["statusMessage"]
            assert (await caller.call_json("get_elicitations"))["elicitations"] == []
        (row,) = (await gate.operator("GET", "/api/questions")).json()
        given = BLUE if method == "elicitation/create" else {"content": SAMPLED["content"], "model": "m"}
        await gate.operator("POST", f"/api/questions/{row['request_id']}", given)
        assert "error" not in await asking


@virtual_time
async def test_progress_of_an_open_call_reports_that_its_server_waits() -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        callers = [await gate.caller("2025", capabilities=CAN_ALL) for _ in range(2)]
        (call,) = await begin(callers[0], shop, _meta={"progressToken": 1})
        await begin(callers[1], shop)
        asyncio.create_task(shop.ask_beside()).add_done_callback(lambda _: None)
        await gate.advance(20)
        received = [message["params"]["message"] for message in call.reply.messages if "params" in message]
        assert any("operator" in text for text in received), received


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_question_with_calls_of_two_callers_open_waits_for_the_operator_and_no_caller_sees_it(
    generation: str,
) -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        callers = [await gate.caller(generation, capabilities=CAN_ANSWER) for _ in range(2)]
        for number, caller in enumerate(callers):
            await caller.listen()
            await begin(caller, shop, _meta={"taskgate/client": f"caller {number}"})
        asking = asyncio.create_task(shop.ask_beside())
        await gate.advance(1)
        (row,) = (await gate.operator("GET", "/api/questions")).json()
        assert (row["server"], row["caller"], row.get("task_id")) == ("shop", "(operator)", None)
        answer = {"action": "accept", "content": {"value": "blue"}}
        await gate.operator("POST", f"/api/questions/{row['request_id']}", answer)
        assert await asking == BLUE
        assert [caller.asked for caller in callers] == [[], []]


@virtual_time
async def test_a_servers_own_task_ids_reach_no_caller() -> None:
    shop = Shop()
    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2025", capabilities=CAN_ANSWER, answers={"elicitation/create": BLUE})
        stream = await caller.listen()
        (call,) = await begin(caller, shop)
        shop.notify("notifications/tasks/status", {"taskId": "raw-id-of-the-server", "status": "working"})
        shop.notify("notifications/message", {"level": "error", "data": "x", "_meta": {RELATED: {"taskId": "raw-id"}}})
        assert await shop.ask_beside("raw-id-of-the-server") == BLUE
        await gate.advance(61)
        await call.done()
        seen = json.dumps([stream.reply.messages, call.reply.messages])
        assert '"data": "x"' in seen
        assert "raw-id" not in seen


@pytest.mark.parametrize("received", [{"reason": "The user pressed stop.", "timestamp": 1763239000}, {}])
@virtual_time
async def test_the_callers_reason_for_cancelling_reaches_the_server(received: dict[str, Any]) -> None:
    shop = Shop()
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        (call,) = await begin(caller, shop)
        number = next(m["id"] for m in shop.received if m.get("method") == "tools/call")
        await caller.notify("notifications/cancelled", {"requestId": 2, **received})
        await until(lambda: shop.methods["notifications/cancelled"] == 1, "the cancellation")
        (reported,) = [m["params"] for m in shop.received if m.get("method") == "notifications/cancelled"]
        assert reported == {"requestId": number, "reason": "The caller cancelled the request.", **received}
        await call.disconnect()


@pytest.mark.parametrize("level", [None, "error"])
@virtual_time
async def test_messages_of_a_stateless_server_reach_a_stateful_caller_in_its_own_form(level: str | None) -> None:
    shop = Upstream("2026", capabilities={"logging": {}})

    @shop.tool("talk")
    async def talk(call: Call) -> str:
        wished = call.meta.get("io.modelcontextprotocol/logLevel")
        for line in ("debug", "error"):
            if wished is not None and (wished == "debug" or line == "error"):
                call.notify("notifications/message", {"level": line, "data": line})
        return "talked"

    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        if level is not None:
            await caller.request("logging/setLevel", {"level": level})
        reply = await caller.call("shop__talk")
        received = [m["params"]["level"] for m in reply.messages if m.get("method") == "notifications/message"]
        assert received == (["error"] if level else ["debug", "error"])


@virtual_time
async def test_a_question_sent_with_a_reply_does_not_interrupt_later_messages() -> None:
    """A server asks just when its reply has left: the caller may have its answer before it can be asked on the same way."""
    shop = Shop()

    async def ask_after(turns: int) -> dict[str, Any]:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await shop.ask_beside()

    @shop.tool("hasty")
    async def hasty(call: Call) -> str:
        asked.append(asyncio.create_task(ask_after(call.arguments["turns"])))
        return "done"

    asked: list[asyncio.Task[dict[str, Any]]] = []
    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2025", capabilities=CAN_ANSWER, answers={"elicitation/create": BLUE})
        await caller.listen()
        for turns in range(40):
            reply = await caller.call("shop__hasty", {"turns": turns})
            assert (reply.status, reply.text) == (200, "done"), turns
        await gate.advance(1)
        # Put to the caller, or refused where no call was open any more; never left without an answer.
        answers = [asking.result() if asking.done() else None for asking in asked]
        assert answers[0] == BLUE
        assert all(answer == BLUE or answer["error"]["code"] == -32600 for answer in answers if answer)
        assert None not in answers


@virtual_time
async def test_a_large_log_line_before_a_reply_reaches_its_caller() -> None:
    shop = Shop()
    long = "x" * (2 * LARGE_BYTES)

    @shop.tool("talk")
    async def talk(call: Call) -> str:
        call.notify("notifications/message", {"level": "error", "data": long})
        return "done"

    async with Gateway(shared(), {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        stream = await caller.listen()
        reply = await caller.call("shop__talk")
        assert reply.text == "done"
        await gate.advance(1)
        received = [
            message["params"]["data"] for message in (*reply.messages, *stream.reply.messages) if "params" in message
        ]
        assert received == [long]


TWO_SCOPES = {
    "servers": {"shop": {"instances": "shared"}, "other": {"instances": "shared"}},
    "scopes": {"default": {"default_servers": ["*"]}, "shop": {"default_servers": ["shop"]}},
}


@virtual_time
async def test_a_level_or_a_notification_reaches_only_the_servers_of_the_sessions_scope() -> None:
    """They share one conversation with each server, and a session of one scope has no business in another's."""
    shop, other = Upstream("2025", capabilities={"logging": {}}), Upstream("2025", capabilities={"logging": {}})
    async with Gateway(TWO_SCOPES, {"shop": shop, "other": other}) as gate:
        await (await gate.caller("2025")).call("other__echo", {"text": "one"})
        caller = await gate.caller("2025", scope="shop")
        await caller.call("shop__echo", {"text": "two"})
        await caller.request("logging/setLevel", {"level": "error"})
        await caller.notify("notifications/roots/list_changed")
        await until(lambda: shop.methods["notifications/roots/list_changed"] == 1, "the notification")
        assert shop.methods["logging/setLevel"] == 1
        assert other.methods["logging/setLevel"] == other.methods["notifications/roots/list_changed"] == 0


@virtual_time
async def test_setting_the_log_level_succeeds_although_a_server_is_lost() -> None:
    """The level is the session's: each call that follows takes it along."""
    shop, other = Upstream("2025", capabilities={"logging": {}}), Upstream("2025", capabilities={"logging": {}})
    async with Gateway(TWO_SCOPES, {"shop": shop, "other": other}) as gate:
        caller = await gate.caller("2025")
        for server in ("shop", "other"):
            await caller.call(f"{server}__echo", {"text": "one"})
        await shop.stop()
        assert (await caller.request("logging/setLevel", {"level": "error"})).result == {}
        assert other.methods["logging/setLevel"] == 1


class Login(Upstream):
    """A server that has addresses opened, and counts them anew for every conversation, as one process for each would."""

    def __init__(self) -> None:
        super().__init__("2025")
        self.tool("log_in", self._log_in)

    async def _log_in(self, call: Call) -> str:
        asked = {"mode": "url", "message": "Log in.", "url": "https://login.example/", "elicitationId": "1"}
        return str((await call.ask("elicitation/create", asked))["action"])


@virtual_time
async def test_a_url_elicitation_id_shared_by_two_callers_completes_once_for_each() -> None:
    login = Login()
    async with Gateway({}, {"login": login}) as gate:
        streams = []
        for _ in range(3):
            caller = await gate.caller(
                "2025", capabilities={"elicitation": {"url": {}}}, answers={"elicitation/create": {"action": "accept"}}
            )
            streams.append(await caller.listen())
            assert (await caller.call("login__log_in")).text == "accept"
        await caller.close()
        for _ in range(3):
            login.notify("notifications/elicitation/complete", {"elicitationId": "1"})
            await gate.advance(1)
        message = [[entry.get("method") for entry in stream.reply.messages] for stream in streams]
        assert message == [["notifications/elicitation/complete"]] * 2 + [[]]
