"""`POST /api/v1/tools/call` and the Try page are calls: what `/mcp` enforces applies there as well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.access.config_tokens import bearer, token
from tests.access.test_attempt_limits import INITIALIZE
from tests.console.test_console_pages import Person
from tests.identity.issuer import an_issuer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.store.operations.identity_records import IdentityRecords

SCOPES = {
    "default": {"default_servers": ["*"]},
    "deploy": {"default_servers": ["*"]},
    "guarded": {"default_servers": ["*"], "require": {"groups": ["sre"]}},
}
CONFIG: dict[str, Any] = {
    "scopes": SCOPES,
    "tokens": [
        token("free", "operator"),
        token("bound", "operator", scope="deploy"),
        token("no-calls", "operator", may_call=False),
        token("sre", "sre"),
        token("acme-boss", "operator", tenant="acme"),
        token("globex-boss", "operator", tenant="globex"),
    ],
}


def notes() -> Upstream:
    server = Upstream("2025")

    @server.tool("read")
    async def read(_call: Call) -> str:
        return "a note"

    return server


EXPECTED: dict[tuple[str, str], tuple[int, str | None]] = {
    ("free", "default"): (200, None),
    ("free", "deploy"): (200, None),
    ("free", "guarded"): (403, "lacks_group"),
    ("free", "none"): (404, "no_such_scope"),
    ("bound", "deploy"): (200, None),
    ("bound", ""): (200, None),
    ("bound", "default"): (404, "no_such_scope"),
    ("bound", "guarded"): (404, "no_such_scope"),
    ("no-calls", "default"): (403, "may_not_call"),
    ("no-calls", "deploy"): (403, "may_not_call"),
    ("sre", "default"): (200, None),
    ("sre", "guarded"): (200, None),
}


@virtual_time
async def test_the_api_refuses_what_mcp_refuses() -> None:
    async with Gateway(CONFIG, {"notes": notes()}) as gate:
        for (name, scope), (status, reason) in EXPECTED.items():
            headers = bearer(f"{name}-token")
            at_mcp = {**headers, "accept": "application/json, text/event-stream", "content-type": "application/json"}
            path = f"/mcp/{scope}" if scope else "/mcp"
            assert (await gate.http("POST", path, INITIALIZE, at_mcp).done()).status == status, (name, scope)
            body = {"tool": "notes__read", **({"scope": scope} if scope else {})}
            called = await gate.http("POST", "/api/v1/tools/call", body, headers).done()
            assert (called.status, called.json().get("reason")) == (status, reason), (name, scope)
            if status == 200:
                assert called.json()["result"]["content"][0]["text"] == "a note"
            listed = await gate.http("GET", f"/api/v1/tools?scope={scope}", headers=headers).done()
            assert (listed.status, listed.json().get("reason")) == (status, reason), (name, scope)
        unread = await gate.http("POST", "/api/v1/tools/call", b"{", bearer("free-token")).done()
        assert unread.status == 400


@pytest.mark.parametrize("by_link", [False, True], ids=["token", "login link"])
@virtual_time
async def test_a_session_is_bound_like_the_token_behind_it(by_link: bool) -> None:
    async with Gateway(CONFIG, {"notes": notes()}) as gate:

        async def person(name: str) -> Person:
            if not by_link:
                return await Person(gate).log_in(f"{name}-token")
            made = await gate.http("POST", "/api/v1/login-links", {}, bearer(f"{name}-token")).done()
            code = made.json()["url"].partition("code=")[2]
            visitor = Person(gate)
            guard = gate.life.dashboard.login.form_token(None)
            reply = await visitor.post("/login", {"code": code}, guard)
            visitor.cookie = reply.headers["set-cookie"].split(";")[0]
            return visitor

        for name in ("free", "bound", "no-calls"):
            visitor = await person(name)
            guard = gate.life.dashboard.login.form_token(visitor.cookie.partition("=")[2])
            for scope in ("default", "deploy", "guarded"):
                status, _ = EXPECTED.get((name, scope), (403, None))
                assert (await visitor.get(f"/try?scope={scope}")).status == status, (name, scope)
                sent = await visitor.post("/try", {"scope": scope, "tool": "notes__read"}, guard)
                assert sent.status == status, (name, scope)


@virtual_time
async def test_a_session_of_a_person_keeps_what_scopes_require_and_when_its_token_ends() -> None:
    require = {"groups": ["sre"], "oauth_scopes": ["deploy"], "claims": {"org.unit": ["x"]}}
    async with an_issuer() as issuer:
        config = {
            "auth": {"jwt": [{"issuer": issuer.url, "audiences": ["gate"]}]},
            "scopes": {
                "default": {"default_servers": ["*"]},
                "guarded": {"default_servers": ["*"], "require": require},
            },
        }
        good = {"groups": ["sre"], "scope": "read deploy", "org": {"unit": "x", "other": "secret"}}
        lacking: list[dict[str, Any]] = [{"groups": []}, {"scope": "read"}, {"org": {"unit": "y"}}]
        async with Gateway(config, {"notes": notes()}) as gate:
            for number, (changes, status) in enumerate([({}, 200), *((each, 403) for each in lacking)]):
                visitor = await Person(gate).log_in(issuer.token(sub=f"p{number}", **{**good, **changes}))
                assert (await visitor.get("/try?scope=guarded")).status == status, changes
                assert (await visitor.get("/try?scope=default")).status == 200
            rows = await gate.life.app.store.ask(IdentityRecords("console_session"))
            assert rows
            assert not any(b"secret" in row.body for row in rows), "claims that no scope requires are not kept"
            await gate.advance(361)
            assert (await visitor.get("/try?scope=default")).status == 303


@virtual_time
async def test_an_operator_of_another_tenant_cannot_use_a_shared_scope() -> None:
    async with Gateway(CONFIG, {"notes": notes()}) as gate:
        request_body = {"config": {"mcp.enabled": "true"}, "label": "acme's"}
        made = (await gate.http("POST", "/api/v1/scopes", request_body, bearer("acme-boss-token")).done()).json()
        for name, status in (("acme-boss", 200), ("globex-boss", 404), ("free", 200), ("sre", 404)):
            headers = bearer(f"{name}-token")
            at_mcp = {**headers, "accept": "application/json, text/event-stream", "content-type": "application/json"}
            assert (await gate.http("POST", f"/mcp/{made['scope']}", INITIALIZE, at_mcp).done()).status == status, name
            body = {"tool": "none", "scope": made["scope"]}
            assert (await gate.http("POST", "/api/v1/tools/call", body, headers).done()).status == status, name


@virtual_time
async def test_an_approver_without_permission_to_call_can_decide() -> None:
    config = {**CONFIG, "governance": {"rules": [{"match": "read", "action": "approve"}]}}
    async with Gateway(config, {"notes": notes()}) as gate:
        caller = await gate.caller("2025", token="sre-token")
        calling = asyncio.ensure_future(caller.begin_call("notes__read").done())
        await gate.advance(1)
        (row,) = (await gate.http("GET", "/api/v1/approvals", headers=bearer("no-calls-token")).done()).json()
        path = f"/api/v1/approvals/{row['id']}/approve"
        assert (await gate.http("POST", path, {}, bearer("no-calls-token")).done()).status == 200
        assert (await calling).text == "a note"
