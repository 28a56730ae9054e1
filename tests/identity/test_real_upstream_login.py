"""A server whose authorization server is the certified provider: discovery, registration, login and renewal.

The server is a second gateway that takes the provider's tokens, so both ends are Taskgate.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.harness.gateway import Gateway, running_gateway
from tests.identity.accounts import digest
from tests.identity.console_login import led_to, log_in, press
from tests.identity.real_provider import RealProvider, real_provider

pytestmark = pytest.mark.peers("oidc")
HEADERS = {"accept": "application/json, text/event-stream"}
WITHIN = 120.0


class Caller:
    """A plain caller of 2025-11-25 that supports no URL elicitation."""

    def __init__(self, gate: Gateway, token: str, client: httpx2.AsyncClient) -> None:
        self._gate, self._client = gate, client
        self._headers = {**HEADERS, "authorization": f"Bearer {token}"}

    async def ask(self, method: str, params: dict[str, Any]) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self._client.post(self._gate.url, json=message, headers=self._headers, timeout=WITHIN)

    async def open(self) -> None:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        reply = await self.ask("initialize", hello)
        self._headers["mcp-session-id"] = reply.headers["mcp-session-id"]

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        reply = await self.ask("tools/call", {"name": tool, "arguments": arguments})
        text = reply.text.strip().split("data: ")[-1] if "event-stream" in reply.headers["content-type"] else reply.text
        found: dict[str, Any] = json.loads(text)
        return found


async def api(gate: Gateway, client: httpx2.AsyncClient, method: str, path: str, **more: Any) -> Any:
    token = (gate.state / "operator-token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return (await client.request(method, f"{gate.base}/api/v1{path}", headers=headers, **more)).json()


async def connect(gate: Gateway, provider: RealProvider, token: str, page: str, login: str, target: str = "") -> str:
    """A person logs in at the gateway with this token, presses the button of the page, and logs in at the provider."""
    async with httpx2.AsyncClient(timeout=120, trust_env=False) as browser:
        await log_in(browser, gate.base, token)
        landed = await provider.log_in(led_to(await press(browser, page, target)), login)
        assert landed.startswith(f"{gate.base}/oauth/callback?")
        return (await browser.get(landed)).text


async def until_listed(caller: Caller, tool: str) -> None:
    async with asyncio.timeout(WITHIN):
        while f'"{tool}"' not in (await caller.ask("tools/list", {})).text:
            await asyncio.sleep(0.2)


async def test_a_waiting_call_continues_after_login_at_the_provider(tmp_path: Path) -> None:
    async with real_provider(accessTokenTtl=40) as provider, httpx2.AsyncClient(timeout=120, trust_env=False) as client:
        demo = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"], "instances": "shared"}
        behind: dict[str, Any] = {"servers": {"demo": demo}, "auth": {"jwt": [{"issuer": provider.url}]}}
        async with running_gateway(behind, tmp_path / "server") as server:
            front = {
                "tokens": [{"id": "ann", "sha256": digest("token-of-ann")}],
                "servers": {"notes": {"url": server.url, "auth": {"type": "authorization_code", "per_user": True}}},
            }
            async with running_gateway(front, tmp_path / "gate") as gate:
                operator = (gate.state / "operator-token").read_text().strip()
                page = f"{gate.base}/servers/notes"
                assert "is connected" in await connect(gate, provider, operator, page, "lister", f"{page}/connect")
                ann = Caller(gate, "token-of-ann", client)
                await ann.open()
                await until_listed(ann, "notes__demo__list_files")
                call = asyncio.create_task(ann.call("notes__demo__list_files"))
                async with asyncio.timeout(WITHIN):
                    while not (asked := await api(gate, client, "GET", "/questions")):
                        await asyncio.sleep(0.1)
                assert not call.done()
                page = asked[0]["params"]["url"]
                assert "is connected" in await connect(gate, provider, "token-of-ann", page, "ann")
                assert "result" in await call
                rows = (await api(gate, client, "GET", "/servers/notes/accounts"))["accounts"]
                assert {row["principal"]: row["renews"] for row in rows} == {None: True, "ann": True}
                counts = await provider.counts()
                assert counts["/reg"] == 1, "registered once for everybody"
                secrets = [b"eyJ", b"token-of-ann"]
                kept = (gate.state / "server-logins").read_bytes()
                assert not any(secret in kept for secret in secrets)
                assert not any(secret.decode() in gate.log + server.log for secret in secrets)
