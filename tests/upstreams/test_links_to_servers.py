"""Opening links, keeping answers apart, and noticing a session that the server has lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time
from tests.virtual_time.network import End
from tests.virtual_time.upstream import Wire

REQUEST_S = 0.1


def slow_to_answer(server: Upstream) -> None:
    """Every request takes a while, as over a long way."""
    usual = server._result

    async def after_a_while(call: Call) -> object:
        await asyncio.sleep(REQUEST_S)
        return await usual(call)

    server._result = after_a_while


@pytest.mark.parametrize("generation", ["2025", "both"])
@virtual_time
async def test_a_hundred_new_sessions_open_concurrently(generation: str) -> None:
    far = Upstream(generation)
    slow_to_answer(far)
    async with Gateway({}, {"far": far}) as gate:
        callers = [await gate.caller("2025") for _ in range(100)]
        calls = [caller.begin_call("far__echo", {"n": number}) for number, caller in enumerate(callers)]
        replies = [await call.done() for call in calls]
        assert [json.loads(reply.text) for reply in replies] == [{"n": number} for number in range(100)]
        assert max(call.took for call in calls) < 20 * REQUEST_S
        assert far.methods["initialize"] <= 101


@virtual_time
async def test_a_2026_only_server_is_probed_once_for_a_hundred_new_sessions() -> None:
    far = Upstream("2026")
    slow_to_answer(far)
    async with Gateway({}, {"far": far}) as gate:
        callers = [await gate.caller("2025") for _ in range(100)]
        calls = [caller.begin_call("far__echo") for caller in callers]
        for call in calls:
            assert (await call.done()).text == "{}"
        assert far.methods["initialize"] <= 1
        assert far.methods["server/discover"] == 1


async def answers_500(call: Call) -> None:
    call.reply.send(500, b"out of order")


async def hangs_up(call: Call) -> None:
    call.reply.end.abort()


async def is_silent(call: Call) -> None:
    await call.sleep(3600)


@pytest.mark.parametrize("breaks", [answers_500, hangs_up, is_silent], ids=lambda breaks: breaks.__name__)
@virtual_time
async def test_a_call_whose_handshake_fails_was_not_executed(breaks: Callable[[Call], Awaitable[None]]) -> None:
    shop = Upstream("2025")
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        shop.on("initialize", breaks)
        shop.on("server/discover", breaks)
        reply = await caller.call("shop__echo")
        assert "not executed" in json.dumps(reply.messages)
        assert "may or may not" not in json.dumps(reply.messages)
        assert shop.count("echo") == 0


async def stops(shop: Upstream) -> None:
    await shop.stop()


async def hangs_up_at_greetings(shop: Upstream) -> None:
    shop.on("initialize", hangs_up)


async def answers_500_to_greetings(shop: Upstream) -> None:
    shop.on("initialize", answers_500)


@pytest.mark.parametrize(
    "fails, expected_text, shown",
    [
        (stops, "does not accept connections (connection refused)", "Connect call failed ('10.0.0."),
        (hangs_up_at_greetings, "broke the connection", ""),
        (answers_500_to_greetings, "rejected the request with HTTP 500", ""),
    ],
)
@virtual_time
async def test_a_call_during_the_backoff_fails_with_the_reason_of_the_last_attempt(
    fails: Callable[[Upstream], Awaitable[None]], expected_text: str, shown: str
) -> None:
    """Callers get a short reason without an address; operators see all details."""
    shop = Upstream("2025")
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        await fails(shop)
        messages = [""]
        while "the next attempt is in" not in messages[-1]:
            messages.append(json.dumps((await caller.call("shop__echo")).last))
            assert len(messages) < 20
        assert f"is unavailable: it {expected_text}; the next attempt is in" in messages[-1]
        assert "10.0.0." not in json.dumps(messages)
        (row,) = (await gate.operator("GET", "/api/v1/servers")).json()
        assert expected_text in row["last_error"]
        assert shown in row["last_error"]
        shop.as_usual("initialize")
        await shop.stop()
        await shop.start()
        await gate.advance(120)
        assert (await caller.call("shop__echo")).text == "{}"
        (row,) = (await gate.operator("GET", "/api/v1/servers")).json()
        assert (row["state"], row["last_error"]) == ("connected", None)


@virtual_time
async def test_a_duplicate_response_does_not_answer_another_call() -> None:
    """The second answer comes when the connection already carries the call of another session."""
    shop = Upstream("2025")
    due: dict[End, bytes] = {}

    @shop.tool("twice")
    async def twice(call: Call) -> None:
        answer = {"jsonrpc": "2.0", "id": call.message["id"], "result": secret(call.arguments["who"])}
        body = json.dumps(answer).encode()
        whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        call.reply.over = True
        call.reply.write(due.pop(call.reply.end, whole))
        due[call.reply.end] = whole

    async with Gateway({}, {"shop": shop}) as gate:
        callers = {f"caller {number}": await gate.caller("2025") for number in range(8)}
        strays = 0
        for _ in range(10):
            for name, caller in callers.items():
                reply = (await caller.call("shop__twice", {"who": name})).messages[-1]
                content = reply.get("result", {}).get("structuredContent", {}).get("who")
                strays += content is None
                assert content in (None, name)
        assert strays, "no answer went astray, so nothing was shown"


def secret(who: str) -> Wire:
    return {"content": [{"type": "text", "text": who}], "structuredContent": {"who": who}}


@virtual_time
async def test_request_ids_are_unique_across_links() -> None:
    first, second = Upstream("both"), Upstream("2026")
    async with Gateway({}, {"one": first, "two": second}) as gate:
        for generation in ("2025", "2026", "2025"):
            caller = await gate.caller(generation)
            await caller.call("one__echo")
            await caller.call("two__echo")
        used = [message["id"] for message in (*first.received, *second.received) if {"id", "method"} <= message.keys()]
        assert len(used) == len(set(used))


@pytest.mark.parametrize("status", [404, 400])
@virtual_time
async def test_a_lost_session_is_detected_by_a_ping_and_reopened_at_once(status: int) -> None:
    """A server without a GET stream has no other way to notify the gateway."""
    shop = Upstream("2025")
    without_get_stream(shop)
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("shop__echo")).text == "{}"
        shop.tool("new", echo)
        refuse_unknown_sessions_with(shop, status)
        shop.forget_sessions()
        await gate.advance(31)
        assert "shop__new" in [tool["name"] for tool in await caller.tools()]
        rows = (await gate.operator("GET", "/api/servers")).json()
        assert [row["state"] for row in rows] == ["connected"]
        assert (await caller.call("shop__echo")).text == "{}"
        assert shop.count("echo") == 2


async def echo(call: Call) -> str:
    return "new"


def without_get_stream(server: Upstream) -> None:
    server._open_get_stream = lambda reply: reply.send(405)


def refuse_unknown_sessions_with(server: Upstream, status: int) -> None:
    usual = server._request

    def refusing(method: str, headers: dict[str, str], body: bytes, reply: object) -> None:
        session = headers.get("mcp-session-id", "")
        if session and session not in server.sessions:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            reply.send(status, json.dumps({"jsonrpc": "2.0", "error": error, "id": None}).encode())  # type: ignore[attr-defined]
        else:
            usual(method, headers, body, reply)  # type: ignore[arg-type]

    server._request = refusing


@virtual_time
async def test_a_stateless_server_that_came_back_with_other_capabilities_is_listed_again() -> None:
    shop = Upstream("2026", capabilities={"tools": {}})
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        assert "shop__new" not in [tool["name"] for tool in await caller.tools()]
        shop.tool("new", echo)
        shop.capabilities = {"tools": {"listChanged": True}, "logging": {}}
        await gate.advance(31)
        assert "shop__new" in [tool["name"] for tool in await caller.tools()]


@pytest.mark.parametrize(("before", "after"), [("2026", "2025"), ("2025", "2026")])
@virtual_time
async def test_a_server_that_reconnects_in_another_generation_is_probed_again(before: str, after: str) -> None:
    shop = Upstream(before)
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller(before)
        assert (await caller.call("shop__echo")).text == "{}"
        shop.stateless = after == "2026"
        shop.supports_2025, shop.supports_2026 = after == "2025", after == "2026"
        shop.forget_sessions()
        shop.disconnect()
        await gate.advance(120)
        assert (await caller.call("shop__echo")).text == "{}"
