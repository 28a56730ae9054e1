"""Callers with tokens of an issuer at a whole gateway: which scopes they may use, as which principal, and the error for others."""

from __future__ import annotations

import json
from typing import Any

from tests.identity.issuer import Issuer, an_issuer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
).encode()


def config(issuer: Issuer, **auth: Any) -> dict[str, Any]:
    return {
        "public_url": "https://gate.example",
        "auth": {"jwt": [{"issuer": issuer.url, **auth}]},
        "scopes": {
            "default": {"default_servers": ["*"]},
            "deploy": {"default_servers": ["*"], "require": {"groups": ["sre"], "oauth_scopes": ["deploy"]}},
        },
    }


def notes() -> Upstream:
    upstream = Upstream("2025")

    @upstream.tool("read")
    async def read(_call: Call) -> str:
        return "a note"

    return upstream


async def post(gate: Gateway, path: str, token: str | None) -> tuple[int, dict[str, str]]:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    reply = await gate.http("POST", path, body=INITIALIZE, headers=headers).done()
    return reply.status, {name.lower(): value for name, value in reply.headers.items()}


RESOURCE = "https://gate.example/mcp"
METADATA = "https://gate.example/.well-known/oauth-protected-resource"


@virtual_time
async def test_a_token_opens_the_resource_it_was_issued_for_and_no_other() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"notes": notes()}) as gate:
        for path, aud, groups, scope, status in (
            ("/mcp", RESOURCE, [], "", 200),
            ("/mcp/v1", RESOURCE, [], "", 200),
            ("/mcp/default", RESOURCE, [], "", 200),
            ("/mcp", f"{RESOURCE}/deploy", ["sre"], "deploy", 401),
            ("/mcp", "https://gate.example", [], "", 401),
            ("/mcp", "https://gate.example/mcpx", [], "", 401),
            ("/mcp/deploy", RESOURCE, ["sre"], "deploy", 401),
            ("/mcp/deploy", f"{RESOURCE}/deploy", ["sre"], "read deploy", 200),
            ("/mcp/deploy", f"{RESOURCE}/deploy", ["sre"], "read", 403),
            ("/mcp/deploy", f"{RESOURCE}/deploy", ["dev"], "deploy", 403),
            ("/mcp/nothing", f"{RESOURCE}/nothing", [], "", 404),
        ):
            found, _ = await post(gate, path, issuer.token(aud=aud, groups=groups, scope=scope))
            assert found == status, (path, aud, groups, scope)


@virtual_time
async def test_a_client_without_a_valid_token_gets_a_challenge_with_the_metadata() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"notes": notes()}) as gate:
        status, headers = await post(gate, "/mcp", None)
        assert status == 401
        assert headers["www-authenticate"] == f'Bearer realm="taskgate", resource_metadata="{METADATA}/mcp"'
        status, headers = await post(gate, "/mcp/deploy", "guess")
        assert status == 401
        assert 'error="invalid_token"' in headers["www-authenticate"]
        assert 'scope="deploy"' in headers["www-authenticate"]
        step_up = issuer.token(aud=f"{RESOURCE}/deploy", groups=["sre"])
        status, headers = await post(gate, "/mcp/deploy", step_up)
        assert status == 403
        assert 'error="insufficient_scope"' in headers["www-authenticate"]
        assert f'resource_metadata="{METADATA}/mcp/deploy"' in headers["www-authenticate"]
        for path, resource in (("", RESOURCE), ("/mcp", RESOURCE), ("/mcp/deploy", f"{RESOURCE}/deploy")):
            reply = await gate.http("GET", f"/.well-known/oauth-protected-resource{path}").done()
            document = json.loads(reply.body)
            assert document["resource"] == resource
            assert document["authorization_servers"] == [issuer.url]
        assert document["scopes_supported"] == ["deploy"]
        assert (await gate.http("GET", "/.well-known/oauth-protected-resource/other").done()).status == 404


@virtual_time
async def test_a_caller_is_identified_by_issuer_and_subject_and_sees_only_its_own_data() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"notes": notes()}) as gate:
        ann = await gate.caller("2026", token=issuer.token(aud=RESOURCE))
        assert (await ann.call("notes__read")).text == "a note"
        other = await gate.caller("2025", token=issuer.token(aud=RESOURCE, sub="bob"))
        assert (await other.call("notes__read")).text == "a note"
        renewed = issuer.token(aud=RESOURCE, sub="bob", jti="second")
        other.token = renewed
        assert (await other.call("notes__read")).text == "a note", "a session outlives a token of the same caller"


@virtual_time
async def test_an_expired_token_is_refused() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"notes": notes()}) as gate:
        token = issuer.token(aud=RESOURCE)
        assert (await post(gate, "/mcp", token))[0] == 200
        await gate.advance(361)
        assert (await post(gate, "/mcp", token))[0] == 401


@virtual_time
async def test_an_unavailable_issuer_is_a_503_and_not_an_invalid_token() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"notes": notes()}) as gate:
        issuer.pages.clear()
        status, headers = await post(gate, "/mcp", issuer.token(aud=RESOURCE))
        assert (status, headers["retry-after"]) == (503, "5")


@virtual_time
async def test_only_the_address_that_guesses_tokens_is_limited() -> None:
    async with an_issuer() as issuer, Gateway(config(issuer), {"notes": notes()}) as gate:
        known = issuer.token(aud=RESOURCE)
        assert (await post(gate, "/mcp", known))[0] == 200
        found = [(await post(gate, "/mcp", f"guess-{number}"))[0] for number in range(70)]
        assert found[:60] == [401] * 60
        assert found[60:] == [429] * 10
        assert (await post(gate, "/mcp", known))[0] == 200
        await gate.advance(61)
        assert (await post(gate, "/mcp", issuer.token(aud=RESOURCE, sub="new")))[0] == 200


@virtual_time
async def test_groups_give_roles_only_where_configured() -> None:
    async with (
        an_issuer() as issuer,
        Gateway(config(issuer, roles={"operator": ["admins"]}), {"notes": notes()}) as gate,
    ):
        for groups, status in ((["operator"], 403), (["admins"], 200)):
            token = issuer.token(aud=RESOURCE, groups=groups, sub=groups[0])
            reply = await gate.http("GET", "/api/v1/approvals", headers={"authorization": f"Bearer {token}"}).done()
            assert reply.status == status, groups
