"""Open responses end with their credential: within two seconds, and with a reason.

Each kind of stream with each way in which a credential can end. A reply in progress survives expiry, but not revocation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.access.config_tokens import bearer, token
from tests.console.test_console_pages import Person
from tests.identity.issuer import Issuer, an_issuer
from tests.inbound.test_stdio_conversations import line
from tests.virtual_time import Call, Gateway, Upstream, settle, the_loop, virtual_time
from tests.virtual_time.callers import Exchange

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.open_responses import AT_ONCE, Ended
from taskgate.access.proof import HttpProof
from taskgate.core.identity.access import Access

WITHIN_S = 2.0
EXPIRES_S = 100
TASKS: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}


def shop() -> Upstream:
    server = Upstream("2025", capabilities={"tools": {}, "logging": {}})

    @server.tool("wait")
    async def wait(call: Call) -> str:
        await call.sleep(40)
        return "waited"

    @server.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(5_000)
        return "done"

    @server.tool("talk")
    async def client(call: Call) -> str:
        for number in range(1_000):
            call.progress(number, 1_000)
            await call.sleep(1)
        return "done"

    return server


class Bench:
    """A gateway with one caller, whose credential the test ends in one way or another."""

    def __init__(self, gate: Gateway, issuer: Issuer, ending: str) -> None:
        self.gate, self.issuer, self.ending = gate, issuer, ending
        self.opaque_is_active = True
        if ending == "token revoked":
            self.secret = "agent-token"
        elif ending == "token expired":
            self.secret = "brief-token"
        elif ending == "taken out of the file":
            self.secret = "agent-token"
        elif ending in ("issued token expired", "subject revoked"):
            self.secret = issuer.token(exp=int(clock.wall()) + EXPIRES_S - 60)
        else:
            self.secret = "opaque"

    async def end(self) -> None:
        if self.ending == "token revoked":
            assert (await self.gate.operator("POST", "/api/v1/tokens/revoke", {"name": "agent"})).status == 200
        elif self.ending == "subject revoked":
            name = f"{self.issuer.url}#ann"
            assert (await self.gate.operator("POST", "/api/v1/tokens/revoke", {"name": name})).status == 200
        elif self.ending == "taken out of the file":
            changed = config(self.issuer)
            changed["tokens"] = [one for one in changed["tokens"] if one["id"] != "agent"]
            await self.gate.reload(changed)
        elif self.ending == "revoked at the issuer":
            self.opaque_is_active = False
        else:
            await self.gate.advance(self.expires_at - clock.monotonic())

    @property
    def within_s(self) -> float:
        """An opaque token is introspected again after `remember`."""
        return WITHIN_S + (5.0 if self.ending == "revoked at the issuer" else 0.0)

    expires_at = 0.0


def config(issuer: Issuer) -> dict[str, Any]:
    soon = datetime.fromtimestamp(clock.wall() + EXPIRES_S, UTC).isoformat()
    issued = {"issuer": issuer.url, "audiences": ["gate"]}
    asked = {"url": f"{issuer.url}/introspect", "client_id": "gate", "client_secret": "s" * 32, "remember": "5s"}
    return {
        "tokens": [token("agent"), token("other"), token("brief", expires=soon)],
        "auth": {"jwt": [issued], "introspection": {**asked, "issuer": issuer.url, "audiences": ["gate"]}},
        "tasks": {"promote_after_ms": 0},
    }


@asynccontextmanager
async def a_bench(ending: str) -> AsyncIterator[Bench]:
    async with an_issuer() as issuer:
        async with Gateway(config(issuer), {"shop": shop()}) as gate:
            bench = Bench(gate, issuer, ending)
            bench.expires_at = clock.monotonic() + EXPIRES_S

            def introspected(body: bytes) -> tuple[int, bytes]:
                good = {**issuer.claims(exp=int(clock.wall()) + 3600), "active": True}
                active = bench.opaque_is_active and b"token=opaque" in body
                return 200, json.dumps(good if active else {"active": False}).encode()

            issuer.pages["/introspect"] = introspected
            yield bench


ENDINGS = {
    "token revoked": "credential_revoked",
    "token expired": "credential_expired",
    "taken out of the file": "credential_revoked",
    "issued token expired": "credential_expired",
    "subject revoked": "credential_revoked",
    "revoked at the issuer": "credential_revoked",
}


async def get_stream(bench: Bench) -> Exchange:
    caller = await bench.gate.caller("2025", token=bench.secret)
    stream: Exchange = await caller.listen()
    return stream


async def resumed_stream(bench: Bench) -> Exchange:
    """A call whose reply is a stream, interrupted and resumed by a GET."""
    caller = await bench.gate.caller("2025", token=bench.secret)
    calling = caller.begin_call("shop__talk", {}, _meta={"progressToken": 1})
    await calling.head()
    await bench.gate.advance(3)
    await calling.disconnect()
    stream: Exchange = await caller.listen(calling.reply.last_event_id)
    return stream


async def listen_stream(bench: Bench) -> Exchange:
    caller = await bench.gate.caller("2026", token=bench.secret)
    stream: Exchange = await caller.listen(toolsListChanged=True)
    return stream


async def events_stream(bench: Bench) -> Exchange:
    return bench.gate.http("GET", "/api/v1/events", headers=bearer(bench.secret))


async def task_stream(bench: Bench) -> Exchange:
    caller = await bench.gate.caller("2025", token=bench.secret, capabilities=TASKS)
    made = await caller.call("shop__slow", {}, task={"ttl": 6_000_000})
    path = f"/api/v1/tasks/{made.result['task']['taskId']}/events"
    return bench.gate.http("GET", path, headers=bearer(bench.secret))


STREAMS = {
    "GET /mcp": get_stream,
    "resumed": resumed_stream,
    "subscriptions/listen": listen_stream,
    "/api/v1/events": events_stream,
    "/api/v1/tasks/{id}/events": task_stream,
}


def reason_of(stream: Exchange) -> Any:
    """The reason in the last event, or in the error that a request was answered with."""
    last = stream.reply.last
    return last["error"]["data"]["error_type"] if "error" in last else last.get("error_type")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", STREAMS)
@virtual_time
async def test_a_stream_ends_with_its_credential_and_contains_the_reason(kind: str, ending: str) -> None:
    async with a_bench(ending) as bench:
        if "expired" in ending:
            await bench.gate.advance(EXPIRES_S - 50)
        stream = await STREAMS[kind](bench)
        assert (await stream.head()).status == 200
        control = bench.gate.http("GET", "/api/v1/events", headers=bearer("other-token"))
        await control.head()
        await bench.gate.advance(30)
        assert not stream.is_done
        await bench.end()
        began = the_loop().time()
        await stream.done(bench.within_s)
        assert the_loop().time() - began <= bench.within_s
        assert reason_of(stream) == ENDINGS[ending]
        await settle()
        assert not control.is_done, "a stream of another credential goes on"
        # The call of a resumed stream is a reply in progress, which survives expiry.
        survives = kind == "resumed" and "expired" in ending
        assert len(bench.gate.life.app.responses) == (2 if survives else 1)
        again = await bench.gate.http("GET", "/api/v1/tasks", headers=bearer(bench.secret)).done()
        assert again.status == 401


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_a_reply_in_progress_survives_expiry_but_not_revocation(generation: str, ending: str) -> None:
    async with a_bench(ending) as bench:
        caller = await bench.gate.caller(generation, token=bench.secret)
        if "expired" in ending:
            await bench.gate.advance(EXPIRES_S - 10)
        calling = caller.begin_call("shop__wait")
        await bench.gate.advance(5)
        assert not calling.is_done
        await bench.end()
        if "expired" in ending:
            assert (await calling.done()).text == "waited"
            return
        began = the_loop().time()
        reply = await calling.done(bench.within_s)
        assert the_loop().time() - began <= bench.within_s
        assert (reply.status, reply.error["data"]["error_type"]) == (200, "credential_revoked")
        assert reply.error["data"]["executed"] == "maybe"


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_durable_call_in_progress_may_have_been_executed_when_its_credential_is_revoked(generation: str) -> None:
    async with a_bench("token revoked") as bench:
        caller = await bench.gate.caller(generation, token=bench.secret)
        calling = caller.begin_call("shop__wait", _meta={"taskgate/idempotencyKey": "k"})
        await bench.gate.advance(5)
        assert not calling.is_done
        await bench.end()
        data = (await calling.done(WITHIN_S)).error["data"]
        assert (data["error_type"], data["executed"]) == ("credential_revoked", "maybe")


@virtual_time
async def test_request_about_task_states_nothing_about_its_call_when_its_credential_is_revoked() -> None:
    async with a_bench("token revoked") as bench:
        caller = await bench.gate.caller("2025", token=bench.secret, capabilities=TASKS)
        task_id = (await caller.call("shop__wait", {}, task={"ttl": 600_000})).result["task"]["taskId"]
        waiting = caller.begin("tasks/result", {"taskId": task_id})
        await bench.gate.advance(5)
        assert not waiting.is_done
        await bench.end()
        data = (await waiting.done(WITHIN_S)).error["data"]
        assert data["error_type"] == "credential_revoked"
        assert data.get("executed") != "no"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("way", ["API", "page"])
@virtual_time
async def test_call_through_the_console_survives_expiry_but_not_revocation(way: str, ending: str) -> None:
    async with a_bench(ending) as bench:
        gate = bench.gate
        if "expired" in ending:
            await gate.advance(EXPIRES_S - 70)
        if way == "API":
            body = {"tool": "shop__wait", "arguments": {}}
            calling = gate.http("POST", "/api/v1/tools/call", body, bearer(bench.secret))
        else:
            person = await Person(gate).log_in(bench.secret)
            guard = gate.life.dashboard.login.form_token(person.cookie.partition("=")[2])
            sent = urlencode({"tool": "shop__wait", "scope": "default", "form_token": guard}).encode()
            kind = {"content-type": "application/x-www-form-urlencoded", "cookie": person.cookie}
            calling = gate.http("POST", "/try", sent, kind)
        await gate.advance(5)
        assert not calling.is_done
        await bench.end()
        revoked_later = way == "page" and ending == "revoked at the issuer"
        if "expired" in ending or revoked_later:
            # A session was started with a valid token, which is not introspected again.
            # After a while a call becomes a task.
            assert b"credential_" not in (await calling.done()).body
            return
        began = the_loop().time()
        reply = await calling.done(bench.within_s)
        assert the_loop().time() - began <= bench.within_s
        assert b"waited" not in reply.body
        assert b"credential_revoked" in reply.body
        if way == "API":
            data = reply.json()["error"]["data"]
            assert (data["error_type"], data["executed"]) == ("credential_revoked", "maybe")
        await settle()
        assert not gate.life.dashboard.api.calls.in_progress
        assert len(gate.life.app.responses) == 0


@virtual_time
async def test_every_request_of_a_batch_is_answered_when_its_credential_is_revoked() -> None:
    async with a_bench("token revoked") as bench:
        headers = {**bearer(bench.secret), "accept": "application/json, text/event-stream"}
        opening = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        first = await bench.gate.http("POST", "/mcp", line(0, "initialize", opening), headers).done()
        headers["mcp-session-id"] = first.headers["mcp-session-id"]
        waiting = line(1, "tools/call", {"name": "shop__wait", "arguments": {}})
        calling = bench.gate.http("POST", "/mcp", b"[" + waiting + b"," + line(2, "ping", {}) + b"]", headers)
        await bench.gate.advance(5)
        assert not calling.is_done
        await bench.end()
        found = {reply["id"]: reply["error"]["data"] for reply in json.loads((await calling.done(WITHIN_S)).body)}
        assert {data["error_type"] for data in found.values()} == {"credential_revoked"}
        assert found[1]["executed"] == "maybe"
        assert set(found) == {1, 2}


@virtual_time
async def test_a_short_reply_registers_no_credential_watch() -> None:
    async with a_bench("token revoked") as bench:
        caller = await bench.gate.caller("2025", token=bench.secret)
        for _ in range(5):
            await caller.tools()
        assert len(bench.gate.life.app.responses) == 0
        calling = caller.begin_call("shop__wait")
        await bench.gate.advance(3)
        assert len(bench.gate.life.app.responses) == 1
        await calling.done()
        assert len(bench.gate.life.app.responses) == 0


@virtual_time
async def test_an_open_page_ends_with_its_session_and_with_the_token_of_its_login() -> None:
    async with a_bench("token revoked") as bench:
        gate = bench.gate

        async def page(secret: str) -> tuple[Person, Exchange]:
            person = await Person(gate).log_in(secret)
            stream = gate.http("GET", "/api/v1/events", headers={"cookie": person.cookie})
            assert (await stream.head()).status == 200
            return person, stream

        first, second = await page("other-token"), await page("other-token")
        third = await page("agent-token")
        brief = await page("brief-token")
        await gate.advance(5)
        guard = gate.life.dashboard.login.form_token(first[0].cookie.partition("=")[2])
        assert (await first[0].post("/logout", {}, guard)).status == 303
        await first[1].done(WITHIN_S)
        assert reason_of(first[1]) == "credential_revoked"
        await bench.end()
        await third[1].done(WITHIN_S)
        assert reason_of(third[1]) == "credential_revoked"
        assert not second[1].is_done
        await gate.advance(EXPIRES_S)
        await brief[1].done(WITHIN_S)
        assert reason_of(brief[1]) == "credential_expired"
        assert (await brief[0].get("/overview")).status == 303, (
            "a session lasts no longer than the token it was begun with"
        )
        assert not second[1].is_done
        await second[1].disconnect()


@virtual_time
async def test_a_stream_ends_when_its_roles_or_its_scope_change() -> None:
    async with a_bench("token revoked") as bench:
        gate, changed = bench.gate, config(bench.issuer)
        streams = [
            gate.http("GET", "/api/v1/events", headers=bearer("other-token")),
            gate.http("GET", "/api/v1/events", headers=bearer("agent-token")),
            await get_stream(bench),
        ]
        for stream in streams:
            await stream.head()
        changed["tokens"] = [token("agent", scope="elsewhere"), token("other", "viewer")]
        changed["scopes"] = {"default": {"default_servers": ["*"]}, "elsewhere": {"default_servers": ["*"]}}
        await gate.reload(changed)
        await streams[0].done(WITHIN_S)
        await streams[2].done(WITHIN_S)
        assert reason_of(streams[0]) == reason_of(streams[2]) == "access_changed"
        assert not streams[1].is_done, "its roles are what they were"


@virtual_time
async def test_anonymous_streams_end_when_a_reload_requires_credentials() -> None:
    async with Gateway({}, {"shop": shop()}) as gate:
        stream = await (await gate.caller("2025")).listen()
        await stream.head()
        await gate.reload({"tokens": [token("agent")]})
        await stream.done(WITHIN_S)
        assert reason_of(stream) == "access_changed"


@virtual_time
async def test_an_unavailable_issuer_does_not_end_streams() -> None:
    async with a_bench("revoked at the issuer") as bench:
        stream = await get_stream(bench)
        await stream.head()
        working = bench.issuer.pages["/introspect"]
        bench.issuer.pages["/introspect"] = lambda _: (500, b"")
        await bench.gate.advance(60)
        assert not stream.is_done
        bench.issuer.pages["/introspect"] = working
        await bench.end()
        await stream.done(12)
        assert reason_of(stream) == "credential_revoked"


@virtual_time
async def test_an_opaque_token_with_open_streams_causes_one_introspection_per_interval() -> None:
    async with a_bench("revoked at the issuer") as bench:
        streams = [await get_stream(bench) for _ in range(20)]
        for stream in streams:
            await stream.head()
        before = bench.issuer.count("/introspect")
        await bench.gate.advance(50)
        assert 9 <= bench.issuer.count("/introspect") - before <= 12


@pytest.mark.parametrize("leap", [EXPIRES_S + 1, -3600])
@virtual_time
async def test_a_credential_expires_by_the_earlier_of_two_clocks(leap: float) -> None:
    """The wall clock jumps forward past the end, or back by an hour before it."""
    async with a_bench("token expired") as bench:
        stream = await get_stream(bench)
        await stream.head()
        await bench.gate.advance(10)
        the_loop().set_wall(clock.wall() + leap)
        if leap < 0:
            await bench.end()
        await stream.done(WITHIN_S)
        assert reason_of(stream) == "credential_expired"
        again = await bench.gate.http("GET", "/api/v1/tasks", headers=bearer(bench.secret)).done()
        assert again.status == 401


@virtual_time
async def test_a_stream_ends_when_its_client_disconnects() -> None:
    async with a_bench("token revoked") as bench:
        gate = bench.gate
        for _ in range(3):
            for name, kind in STREAMS.items():
                if name != "resumed":  # There the call itself goes on, and may be resumed again.
                    stream = await kind(bench)
                    await stream.head()
                    await stream.disconnect()
        await gate.advance(1)
        assert len(gate.life.app.responses) == 0
        assert gate.life.dashboard.live.open_streams == 0


@virtual_time
async def test_ten_thousand_streams_end_in_portions() -> None:
    """No iteration of the event loop examines all of them."""
    async with a_bench("token revoked") as bench:
        responses, authorizer = bench.gate.life.app.responses, bench.gate.life.app.authorizer
        proof = HttpProof(Arrival("192.0.2.1", False, False), b"Bearer agent-token", ())
        authorized = authorizer.admit(proof, Access.LOGIN)
        ended: list[str] = []
        begun = asyncio.Event()

        def note(why: Ended) -> None:
            ended.append(why.reason.value)
            begun.set()

        for _ in range(10_000):
            responses.hold(authorized, note)
        revoking = asyncio.create_task(bench.end())
        await begun.wait()
        assert len(ended) <= 2 * AT_ONCE
        await revoking
        await bench.gate.advance(1)
        assert len(ended) == 10_000
