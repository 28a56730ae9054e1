"""The audience of an issuer's token, at every way in: a token for another resource opens nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.access.config_tokens import bearer
from tests.access.test_attempt_limits import try_at
from tests.identity.issuer import Issuer, an_issuer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

URL = "https://gate.example"


def config(issuer: Issuer, **auth: Any) -> dict[str, Any]:
    return {
        "public_url": URL,
        "auth": {"jwt": [{"issuer": issuer.url, "roles": {"admin": ["root"]}, **auth}]},
        "scopes": {"default": {"default_servers": ["*"]}, "deploy": {"default_servers": ["*"]}},
        "governance": {"rules": [{"match": "pay", "action": "approve"}]},
    }


def bank() -> Upstream:
    server = Upstream("2025")

    @server.tool("pay")
    async def pay(_call: Call) -> str:
        return "paid"

    @server.tool("read")
    async def read(_call: Call) -> str:
        return "5"

    return server


WAYS = ("/mcp", "/mcp/deploy", "/api/v1/tokens", "/api/v1/events", "/login")
NOWHERE = dict.fromkeys(WAYS, False)
BY_DEFAULT: dict[str, dict[str, bool]] = {
    "https://other.example/mcp": NOWHERE,
    "https://gate.example.evil/mcp": NOWHERE,
    f"{URL}/mcpx": NOWHERE,
    f"{URL}/mcp/none": NOWHERE,
    "gate": NOWHERE,
    f"{URL}/mcp/deploy": {**NOWHERE, "/mcp/deploy": True},
    f"{URL}/mcp": {**dict.fromkeys(WAYS, True), "/mcp/deploy": False},
    URL: {**dict.fromkeys(WAYS, True), "/mcp": False, "/mcp/deploy": False},
    f"{URL}/": {**dict.fromkeys(WAYS, True), "/mcp": False, "/mcp/deploy": False},
}


@pytest.mark.parametrize("audience", BY_DEFAULT)
@virtual_time
async def test_by_default_the_audience_is_the_address(audience: str) -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"bank": bank()}) as gate:
        found = {
            where: await try_at(gate, where, issuer.token(aud=audience, groups=["root"], jti=where)) for where in WAYS
        }
        assert {where: status in (200, 303) for where, status in found.items()} == BY_DEFAULT[audience], found


@pytest.mark.parametrize(("audience", "opens"), [("gate", True), (f"{URL}/mcp", False), ("https://other", False)])
@virtual_time
async def test_configured_audiences_replace_the_addresses(audience: str, opens: bool) -> None:
    async with an_issuer() as issuer, Gateway(config(issuer, audiences=["gate", "gate2"]), {"bank": bank()}) as gate:
        for where in WAYS:
            status = await try_at(gate, where, issuer.token(aud=audience, groups=["root"], jti=where))
            assert (status in (200, 303)) == opens, where


@virtual_time
async def test_a_token_for_another_resource_cannot_decide_list_or_call() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"bank": bank()}) as gate:
        ann = await gate.caller("2025", token=issuer.token(aud=f"{URL}/mcp"))
        calling = ann.begin_call("bank__pay")
        await gate.advance(1)
        (row,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        for audience in ("https://other.example/mcp", f"{URL}/mcp/deploy"):
            other = bearer(issuer.token(aud=audience, sub="bob", groups=["root"]))

            async def ask(method: str, path: str, body: Any = None, headers: dict[str, str] = other) -> Any:
                return await gate.http(method, path, body, headers).done()

            for reply in (
                await ask("POST", f"/api/v1/approvals/{row['id']}/approve", {}),
                await ask("GET", "/api/v1/tokens"),
                await ask("POST", "/api/v1/tools/call", {"tool": "bank__read"}),
                await ask("POST", "/api/v1/login-links", {}),
            ):
                assert (reply.status, reply.json()["reason"]) == (401, "other_audience")
                assert 'error="invalid_token"' in reply.headers["www-authenticate"]
        assert not calling.is_done
        good = bearer(issuer.token(aud=URL, sub="bob", groups=["root"]))
        done = await gate.http("POST", f"/api/v1/approvals/{row['id']}/approve", {}, good).done()
        assert done.status == 200
        assert (await calling.done()).text == "paid"


@virtual_time
async def test_a_token_for_one_scope_may_call_there_through_the_api_as_well() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"bank": bank()}) as gate:
        token = bearer(issuer.token(aud=f"{URL}/mcp/deploy"))
        body = {"tool": "bank__read", "scope": "deploy"}
        assert (await gate.http("POST", "/api/v1/tools/call", body, token).done()).json()["result"]
        for scope in ({}, {"scope": "default"}):
            refused = await gate.http("POST", "/api/v1/tools/call", {"tool": "bank__read", **scope}, token).done()
            assert (refused.status, refused.json()["reason"]) == (401, "other_audience")
