"""The certified provider as the issuer of callers: its tokens are good here, also those signed with a new key."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from tests.harness.gateway import running_gateway
from tests.identity.real_provider import RealProvider, machine_client, real_provider, web_client

pytestmark = pytest.mark.peers("oidc")
RESOURCE = "https://gate.example/mcp"
CALLBACK = "http://127.0.0.1:1/callback"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


async def token_of_person(provider: RealProvider, login: str) -> str:
    """An access token by the whole authorization code flow."""
    verifier = "v" * 64
    digest = hashlib.sha256(verifier.encode()).digest()
    asked = {
        "client_id": "desk",
        "response_type": "code",
        "redirect_uri": CALLBACK,
        "scope": "openid read",
        "state": "s-1",
        "resource": RESOURCE,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
    }
    landed = parse_qs(urlsplit(await provider.log_in(f"{provider.url}/auth?{urlencode(asked)}", login)).query)
    assert landed["state"] == ["s-1"]
    assert landed["iss"] == [provider.url]
    form = {"grant_type": "authorization_code", "code": landed["code"][0], "redirect_uri": CALLBACK}
    async with httpx2.AsyncClient(timeout=120, trust_env=False) as client:
        given = {**form, "code_verifier": verifier, "resource": RESOURCE}
        reply = await client.post(f"{provider.url}/token", data=given, auth=("desk", "secret-of-a-client"))
    assert reply.status_code == 200, reply.text
    return str(reply.json()["access_token"])


async def test_tokens_of_machines_and_people_open_what_their_groups_allow(tmp_path: Path) -> None:
    clients = [machine_client("agent"), web_client("desk", [CALLBACK])]
    async with real_provider(accounts={"ann": {"groups": ["sre"]}}, clients=clients) as provider:
        config = {
            "public_url": "https://gate.example",
            "auth": {"jwt": [{"issuer": provider.url, "audiences": [RESOURCE]}]},
            "scopes": {
                "default": {"default_servers": ["*"]},
                "deploy": {"default_servers": ["*"], "require": {"groups": ["sre"]}},
            },
        }
        async with (
            running_gateway(config, tmp_path) as gate,
            httpx2.AsyncClient(timeout=120, trust_env=False) as client,
        ):

            async def status(token: str, path: str = "/mcp") -> int:
                headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
                return (await client.post(f"{gate.base}{path}", json=INITIALIZE, headers=headers)).status_code

            agent = await provider.token_of_client("agent", resource=RESOURCE)
            ann, bob = await token_of_person(provider, "ann"), await token_of_person(provider, "bob")
            other = await provider.token_of_client("agent", resource="https://other.example/mcp")
            assert [await status(token) for token in (agent, ann, bob, other)] == [200, 200, 200, 401]
            assert [await status(token, "/mcp/deploy") for token in (ann, bob)] == [200, 403]
            await provider.rotate_keys()
            fresh = await provider.token_of_client("agent", resource=RESOURCE)
            assert await status(fresh) == 200, "a key that is new is looked for at once"
            assert await status(agent) == 200
