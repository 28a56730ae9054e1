"""Each principal's own account at a server: a call without one becomes a question to the right person, then continues."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.identity.accounts import Browser, LoginIssuer, Notes, config, connected
from tests.identity.issuer import an_issuer
from tests.virtual_time import TASKS_EXTENSION, Exchange, Gateway, virtual_time

BY_URL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


async def prepared(gate: Gateway, issuer: LoginIssuer) -> None:
    """The shared account, with which lists are fetched."""
    await connected(gate, issuer, "", "lister")
    await gate.advance(70)


async def question_of(gate: Gateway) -> dict[str, Any]:
    rows = json.loads((await gate.operator("GET", "/api/v1/questions")).body)
    found: dict[str, Any] = rows[0] if isinstance(rows, list) else rows["questions"][0]
    return found


@virtual_time
async def test_two_people_use_their_own_accounts_and_never_each_others() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        for generation in ("2025", "2026"):
            notes = Notes(issuer, generation)
            async with Gateway(config(issuer), {"notes": notes.upstream()}) as gate:
                await prepared(gate, issuer)
                for who in ("ann", "bob"):
                    await connected(gate, issuer, who, f"{who}-at-notes")
                for client_generation in ("2025", "2026"):
                    ann = await gate.caller(client_generation, token="token-of-ann")
                    bob = await gate.caller(client_generation, token="token-of-bob")
                    for _ in range(2):
                        assert (await ann.call("notes__read")).text == "a note of ann-at-notes"
                        assert (await bob.call("notes__read")).text == "a note of bob-at-notes"
                rows = json.loads((await gate.operator("GET", "/api/v1/servers/notes/accounts")).body)["accounts"]
                assert [row["principal"] for row in rows] == [None, "ann", "bob"]
                assert {row["state"] for row in rows} == {"connected"}


async def ann_connects(gate: Gateway, issuer: LoginIssuer, call: Exchange, page: str) -> None:
    assert not call.is_done
    done = await (await Browser(gate).log_in_as("ann")).connect(page, issuer, "ann-at-notes")
    assert done.status == 200, done.body
    assert b"is connected" in done.body


@virtual_time
async def test_a_caller_with_url_elicitation_gets_the_login_link_on_its_stream() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer)
        async with Gateway(config(issuer), {"notes": notes.upstream()}) as gate:
            await prepared(gate, issuer)
            asked: list[dict[str, Any]] = []
            answers = {"elicitation/create": lambda params: asked.append(params) or {"action": "accept"}}
            ann = await gate.caller("2025", token="token-of-ann", capabilities=BY_URL, answers=answers)
            call = ann.begin_call("notes__read")
            await gate.advance(1)
            assert [params["mode"] for params in asked] == ["url"]
            assert "Connect your account at notes" in asked[0]["message"]
            await ann_connects(gate, issuer, call, asked[0]["url"])
            assert (await call.done()).text == "a note of ann-at-notes"
            assert notes.ran_for == ["ann-at-notes"]
            assert len(asked) == 1


@virtual_time
async def test_a_stateless_caller_gets_the_login_link_in_a_result_and_its_next_round_waits() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer, "2026")
        async with Gateway(config(issuer), {"notes": notes.upstream()}) as gate:
            await prepared(gate, issuer)
            ann = await gate.caller("2026", token="token-of-ann", capabilities=BY_URL)
            first = (await ann.request("tools/call", {"name": "notes__read", "arguments": {}})).result
            assert first["resultType"] == "input_required"
            ((key, question),) = first["inputRequests"].items()
            answered = {"name": "notes__read", "arguments": {}, "requestState": first["requestState"]}
            again = ann.begin("tools/call", {**answered, "inputResponses": {key: {"action": "accept"}}})
            await gate.advance(1)
            await ann_connects(gate, issuer, again, question["params"]["url"])
            assert (await again.done()).text == "a note of ann-at-notes"
            assert notes.ran_for == ["ann-at-notes"]


@virtual_time
async def test_any_other_call_waits_as_a_task_with_a_link_in_the_inbox() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        for generation, capabilities in (("2025", {}), ("2026", {}), ("2026", TASKS_EXTENSION)):
            notes = Notes(issuer)
            async with Gateway(config(issuer), {"notes": notes.upstream()}) as gate:
                await prepared(gate, issuer)
                ann = await gate.caller(generation, token="token-of-ann", capabilities=capabilities)
                call = ann.begin_call("notes__read")
                await gate.advance(1)
                question = await question_of(gate)
                assert question["server"] == "notes"
                await ann_connects(gate, issuer, call, question["params"]["url"])
                assert (await call.done()).text == "a note of ann-at-notes"


@virtual_time
async def test_a_declined_login_is_an_error_and_nothing_runs() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer)
        async with Gateway(config(issuer), {"notes": notes.upstream()}) as gate:
            await prepared(gate, issuer)
            answers = {"elicitation/create": {"action": "decline"}}
            ann = await gate.caller("2025", token="token-of-ann", capabilities=BY_URL, answers=answers)
            reply = await ann.call("notes__read")
            assert "requires a login" in reply.error["message"]
            assert reply.error["data"]["executed"] == "no"
            assert notes.ran_for == []


@virtual_time
async def test_a_revoked_login_is_requested_again_once() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer)
        async with Gateway(config(issuer), {"notes": notes.upstream()}) as gate:
            await prepared(gate, issuer)
            await connected(gate, issuer, "ann", "ann-at-notes")
            ann = await gate.caller("2025", token="token-of-ann")
            assert (await ann.call("notes__read")).text == "a note of ann-at-notes"
            issuer.good.clear()
            issuer.refresh.clear()
            before = len(issuer.forms)
            calls = [ann.begin_call("notes__read") for _ in range(10)]
            await gate.advance(300)
            tries = [form for form in issuer.forms[before:] if "ann" in form.get("refresh_token", "")]
            assert len(tries) == 1, "the issuer said no once, and is not asked again"
            rows = json.loads((await gate.operator("GET", "/api/v1/servers/notes/accounts")).body)["accounts"]
            assert {row["principal"]: row["state"] for row in rows}["ann"] == "ended"
            question = await question_of(gate)
            await (await Browser(gate).log_in_as("ann")).connect(question["params"]["url"], issuer, "ann-at-notes")
            replies = await asyncio.gather(*(call.done() for call in calls))
            assert all(reply.status == 200 for reply in replies)
            await gate.advance(30)
            assert notes.ran_for.count("ann-at-notes") == 11


@virtual_time
async def test_an_account_outlives_a_restart_and_a_task_that_waits_for_one_does_too() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        notes = Notes(issuer)
        async with Gateway(config(issuer), {"notes": notes.upstream()}) as gate:
            await prepared(gate, issuer)
            ann = await gate.caller("2025", token="token-of-ann")
            task = (await ann.request("tools/call", {"name": "notes__read", "arguments": {}, "task": {}})).result
            await gate.advance(1)
            page = (await question_of(gate))["params"]["url"]
            gate.crash()
            await gate.start()
            await gate.advance(70)
            await (await Browser(gate).log_in_as("ann")).connect(page, issuer, "ann-at-notes")
            await gate.advance(70)
            ann = await gate.caller("2025", token="token-of-ann")
            got = (await ann.request("tasks/result", {"taskId": task["task"]["taskId"]})).text
            assert got == "a note of ann-at-notes"
            assert notes.ran_for == ["ann-at-notes"]
