"""Questions at one gateway are shown and answered at every other: forms in an inbox, pages, login links."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from tests.harness.plain_http import NO_TLS
from tests.harness.raw_client import RawClient
from tests.replicas.in_process import HeldGateway, gateways, until
from tests.replicas.three_gateways import NOTIFYING

FACADE = {"default": {"default_servers": ["*"], "mode": "both"}}
TOKEN = "the-token-of-ann"
LONG_LEASE = {"grace_ms": 60_000, "promote_after_ms": 60_000}


async def questions(gateway: HeldGateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await gateway.operator("GET", "/api/questions")).json()
    return rows


async def asked(gateway: HeldGateway, number: int) -> list[dict[str, Any]]:
    async def there() -> list[dict[str, Any]]:
        rows = await questions(gateway)
        return rows if len(rows) == number else []

    found: list[dict[str, Any]] = await until(there)
    return found


async def no_open_question(gateway: HeldGateway) -> None:
    async def none() -> bool:
        return not await questions(gateway)

    await until(none)


def accept(value: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"value": value}}


async def test_the_question_of_a_plain_call_is_seen_and_answered_at_the_other_gateway(tmp_path: Path) -> None:
    async with gateways(tmp_path, scopes=FACADE, tasks=LONG_LEASE) as setup, setup.a.caller(stateless=False) as caller:
        call = asyncio.create_task(caller.call("books__once_ask", {"call": "c1"}))
        at_a, at_b = await asked(setup.a, 2), await asked(setup.b, 2)
        assert [row["request_id"] for row in at_a] == [row["request_id"] for row in at_b]
        assert [row["params"]["message"] for row in at_b] == [row["params"]["message"] for row in at_a]
        first, second = at_b
        wrong = await setup.b.operator("POST", f"/api/questions/{first['request_id']}", {"content": {"value": 7}})
        assert wrong.status_code == 400, "checked where it is answered"
        reply = await setup.b.operator("POST", f"/api/questions/{first['request_id']}", accept("x"))
        assert reply.status_code == 200, reply.text
        assert [row["request_id"] for row in await asked(setup.a, 1)] == [second["request_id"]]
        again = await setup.a.operator("POST", f"/api/questions/{first['request_id']}", accept("other"))
        assert again.status_code == 404
        assert (
            await setup.a.operator("POST", f"/api/questions/{second['request_id']}", accept("y"))
        ).status_code == 200
        result = (await asyncio.wait_for(call, 60)).result
        assert "colour y" in str(result) or "colour x" in str(result)
        assert setup.ledger.count("c1") == 1
        await no_open_question(setup.b)


async def test_one_of_two_answers_at_two_gateways_is_accepted_and_the_other_refused(tmp_path: Path) -> None:
    async with gateways(tmp_path, number=3, scopes=FACADE, tasks=LONG_LEASE) as setup:
        async with setup.a.caller(stateless=False) as caller:
            call = asyncio.create_task(caller.call("books__once_ask", {"call": "c1"}))
            for gateway in setup.gateways:
                rows = await asked(gateway, 2)
            for row in rows:
                path = f"/api/questions/{row['request_id']}"
                replies = await asyncio.gather(
                    *(gateway.operator("POST", path, accept(str(n))) for n, gateway in enumerate(setup.gateways))
                )
                assert sorted(answer.status_code for answer in replies)[0] == 200
                assert [answer.status_code for answer in replies].count(200) == 1, [answer.text for answer in replies]
            await asyncio.wait_for(call, 60)
            assert setup.ledger.count("c1") == 1


async def test_own_tools_list_and_answer_questions_at_another_gateway(tmp_path: Path) -> None:
    """A stateless caller, whose next request reaches another gateway."""
    tokens = [{"id": "ann", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]
    async with gateways(tmp_path, scopes=FACADE, tasks=LONG_LEASE, tokens=tokens) as setup:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        async with setup.a.caller(headers=dict(bearer)) as asking, setup.b.caller(headers=dict(bearer)) as answering:
            call = asyncio.create_task(asking.call("books__once_ask", {"call": "c1"}))

            async def shown() -> list[dict[str, Any]]:
                reply = (await answering.call("get_elicitations")).result["content"][0]["text"]
                found: list[dict[str, Any]] = json.loads(reply)["elicitations"]
                return found if len(found) == 2 else []

            for question in await until(shown):
                given = {"request_id": question["request_id"], **accept("x")}
                assert "has your answer" in str((await answering.call("respond_to_elicitation", given)).result)
            assert "name x" in str((await asyncio.wait_for(call, 60)).result)
            assert setup.ledger.count("c1") == 1


async def test_questions_of_a_stopped_gateway_are_no_longer_shown(tmp_path: Path) -> None:
    async with gateways(tmp_path, scopes=FACADE, tasks=LONG_LEASE) as setup, setup.a.caller(stateless=False) as caller:
        call = asyncio.create_task(caller.call("books__once_ask", {"call": "c1"}))
        (row, _) = await asked(setup.b, 2)
        await setup.a.stop()
        await no_open_question(setup.b)
        reply = await setup.b.operator("POST", f"/api/questions/{row['request_id']}", accept("x"))
        assert reply.status_code == 404
        await asyncio.gather(call, return_exceptions=True)
        assert setup.ledger.count("c1") <= 1


async def test_a_login_link_of_one_gateway_works_once_at_any(tmp_path: Path) -> None:
    async with gateways(tmp_path) as setup:
        link = (await setup.a.operator("POST", "/api/login-links", {})).json()["url"]
        code = urlsplit(link).query.removeprefix("code=")
        async with httpx2.AsyncClient(timeout=60, verify=NO_TLS) as http:
            page = await http.get(f"{setup.b.base}/login?code={code}")
            token = page.text.partition('name="form_token" value="')[2].partition('"')[0]
            form = {"code": code, "form_token": token}
            tries = await asyncio.gather(
                *(http.post(f"{gateway.base}/login", data=form) for gateway in (setup.b, setup.a, setup.b))
            )
            assert sorted(reply.status_code for reply in tries) == [303, 403, 403]
            cookie = next(reply for reply in tries if reply.status_code == 303).headers["set-cookie"].split(";")[0]
            for gateway in setup.gateways:
                seen = await http.get(f"{gateway.base}/inbox", headers={"cookie": cookie})
                assert seen.status_code == 200


async def test_an_elicitation_page_is_opened_and_answered_at_another_gateway(tmp_path: Path) -> None:
    """The user's browser reaches another gateway than the one with the session that asked."""
    async with gateways(tmp_path, compat={"vendor_methods": True}) as setup:
        async with setup.a.caller(stateless=False) as caller:
            listed = [{"type": "url", "name": "Confirm", "description": "Is it all right?"}]
            made = (await caller.request("elicitation/create", {"elicitations": listed})).result["elicitations"][0]
            code = urlsplit((await setup.b.operator("POST", "/api/login-links", {})).json()["url"]).query
            async with httpx2.AsyncClient(timeout=60, verify=NO_TLS) as http:
                page = await http.get(f"{setup.b.base}/login?{code}")
                form = {"code": code.removeprefix("code="), "form_token": _form_token(page.text)}
                cookie = (await http.post(f"{setup.b.base}/login", data=form)).headers["set-cookie"].split(";")[0]
                inside = {"cookie": cookie}
                place = f"{setup.b.base}/elicitations/{made['elicitationId']}"

                async def shown() -> str:
                    reply = await http.get(place, headers=inside)
                    return reply.text if reply.status_code == 200 else ""

                text = await until(shown)
                assert "Is it all right?" in text
                answer = {"value": "yes", "form_token": _form_token(text)}
                response = await http.post(f"{place}/answer", data=answer, headers=inside)
                assert response.status_code == 200, response.text
                again = await http.post(f"{place}/answer", data=answer, headers=inside)
                assert again.status_code in (404, 409)
            assert setup.a.life is not None
            assert not setup.a.life.app.gateway.console.decisions.pages.own(), "the requester received the answer"


def _form_token(text: str) -> str:
    return text.partition('name="form_token" value="')[2].partition('"')[0]


SLOWLY = {"grace_ms": 60_000, "promote_after_ms": 60_000}


async def test_state_of_own_tools_for_a_stateless_client_is_found_at_every_gateway(tmp_path: Path) -> None:
    """Timers, the events they make, and what servers say beside its calls: at the gateway that was asked first, and when that
    is gone at the next."""
    servers = {"tells": {"command": sys.executable, "args": [str(NOTIFYING)]}}
    scopes = {"default": {"default_servers": ["*"], "mode": "both"}}
    async with gateways(tmp_path, servers=servers, scopes=scopes, tasks=SLOWLY) as setup, AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(one.caller()) for one in setup.gateways]

        async def own_tool(caller: RawClient, tool: str, **arguments: Any) -> dict[str, Any]:
            meta = {"_meta": {"taskgate/client": "laptop", "io.modelcontextprotocol/logLevel": "debug"}}
            answer = (await caller.call(tool, arguments, **meta)).result
            found: dict[str, Any] = json.loads(answer["content"][0]["text"])
            return found

        timer = (await own_tool(a, "set_timer", duration_ms=3_600_000, message="later"))["timer"]
        assert [one["timer_id"] for one in (await own_tool(b, "list_timers"))["timers"]] == [timer["timer_id"]]
        await own_tool(b, "set_timer", duration_ms=100, message="soon")

        async def soon() -> bool:
            return "soon" in str(await own_tool(b, "await_activity", timeout_ms=1_000))

        await until(soon)
        assert (await own_tool(b, "delete_timer", timer_id=timer["timer_id"]))["success"] is True
        assert (await own_tool(a, "list_timers"))["timers"] == []

        def knows() -> bool:
            assert setup.b.life is not None
            shared = setup.b.life.app.gateway.lifecycle.shared_sessions
            return shared is not None and shared.conversations.any_elsewhere

        await until(knows)
        meta = {"_meta": {"taskgate/client": "laptop", "io.modelcontextprotocol/logLevel": "debug"}}
        ran = await b.call(
            "execute_tool",
            {"server": "tells", "tool": "steps", "args": {"count": 1}, "timeout_ms": 20_000},
            **meta,
        )
        assert "result" in ran.reply, ran.reply
        assert "step 1" in str(await own_tool(a, "get_logs")), ran.reply
        await setup.a.stop()
        assert (await own_tool(b, "list_timers"))["timers"] == []
        await own_tool(b, "set_timer", duration_ms=3_600_000, message="anew")
        assert len((await own_tool(b, "list_timers"))["timers"]) == 1


async def test_a_stateless_client_waits_for_activity_at_one_gateway_in_a_scope_without_the_facade(
    tmp_path: Path,
) -> None:
    """Notifications that servers send outside of its calls arrive where it waits, whichever gateway it calls."""
    servers = {"tells": {"command": sys.executable, "args": [str(NOTIFYING)]}}
    meta = {"_meta": {"taskgate/client": "laptop", "io.modelcontextprotocol/logLevel": "debug"}}
    async with gateways(tmp_path, servers=servers, tasks=SLOWLY) as setup, AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(one.caller()) for one in setup.gateways]
        assert "result" in (await a.call("await_activity", {"timeout_ms": 1}, **meta)).reply

        async def homes() -> list[bool]:
            """At which gateways something is kept for the client."""
            assert setup.a.life is not None
            assert setup.b.life is not None
            return [len(life.app.gateway.console.decisions.activity) > 0 for life in (setup.a.life, setup.b.life)]

        for _ in range(3):
            assert "result" in (await b.call("await_activity", {"timeout_ms": 1}, **meta)).reply
        assert await homes() == [True, False]
