"""The client under test of the suite's authorization scenarios: a gateway with a server that requires a login, and a person.

    python -m tests.conformance.drive_gateway_login SERVER_URL

The person opens every page that the gateway asks for, and the suite's authorization server agrees at once. The caller lists the
tools and calls each; the suite checks what reaches its servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
from tests.conformance.drive_gateway import arguments_for
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.wire import STATELESS, caller
from tests.identity.console_login import led_to, log_in, press

WITHIN_S = 60.0
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"


class Person:
    """Opens the pages of the gateway, each once."""

    def __init__(self, gate: Gateway, client: httpx2.AsyncClient) -> None:
        self._gate, self._client = gate, client
        self._seen: set[str] = set()
        self._token = (gate.state / "operator-token").read_text().strip()
        self._headers = {"authorization": f"Bearer {self._token}"}

    async def connect(self, page: str) -> str:
        """The operator's login is the caller: the gateway is local and has no identities."""
        async with httpx2.AsyncClient(trust_env=False, timeout=WITHIN_S) as browser:
            await log_in(browser, self._gate.base, self._token)
            led = await press(browser, page)
            if led.status_code != 200:
                return led.text
            agreed = await browser.get(led_to(led))
            back = urlsplit(agreed.headers.get("location", ""))
            return (await browser.get(f"{self._gate.base}{back.path}?{back.query}")).text

    async def connect_beforehand(self) -> str:
        """The caller's own account, which also serves for the lists."""
        address = f"{self._gate.base}/api/v1/servers/suite/accounts"
        reply = await self._client.post(address, json={"principal": "anonymous"}, headers=self._headers)
        return await self.connect(reply.json()["url"])

    async def is_connected(self) -> bool:
        """Whether a login was accepted; without one the suite's server has no tools to wait for."""
        address = f"{self._gate.base}/api/v1/servers/suite/accounts"
        return bool((await self._client.get(address, headers=self._headers)).json()["accounts"])

    async def stand_by(self) -> None:
        """Answer the gateway's questions while it runs."""
        while True:
            rows = await self._client.get(f"{self._gate.base}/api/v1/questions", headers=self._headers)
            for row in rows.json():
                if row["request_id"] not in self._seen:
                    self._seen.add(row["request_id"])
                    print(await self.connect(row["params"]["url"]), file=sys.stderr)
            accounts = await self._client.get(f"{self._gate.base}/api/v1/servers/suite/accounts", headers=self._headers)
            if any(account["state"] == "ended" for account in accounts.json()["accounts"]):
                print(await self.connect_beforehand(), file=sys.stderr)
            await asyncio.sleep(0.2)


async def use_every_tool(one: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not (tools := await one.list_tools()):
            await asyncio.sleep(0.2)
    for tool in tools:
        reply = await one.request("tools/call", name=tool["name"], arguments=arguments_for(tool, tools))
        print(str(reply.last)[:500], file=sys.stderr)


async def main(url: str, environment: Mapping[str, str]) -> None:
    context = json.loads(environment.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    stateless = environment.get("MCP_CONFORMANCE_PROTOCOL_VERSION") == STATELESS
    known = {name: context[name] for name in ("client_id", "client_secret") if name in context}
    if "cimd" in environment.get("MCP_CONFORMANCE_SCENARIO", ""):
        known["client_id"] = CLIENT_DOCUMENT
    auth: dict[str, Any] = {"type": "authorization_code", "per_user": True}
    if "client-credentials" in environment.get("MCP_CONFORMANCE_SCENARIO", ""):
        auth = {"type": "client_credentials"}
    config = {
        "servers": {"suite": {"url": url, "auth": {**auth, **known}}},
        "scopes": {"default": {"default_servers": ["*"], "names": "plain", "helper_tools": "never"}},
    }
    async with running_gateway(config) as gate, httpx2.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
        person = Person(gate, client)
        if auth["type"] == "authorization_code":
            print(await person.connect_beforehand(), file=sys.stderr)
        standing_by = asyncio.create_task(person.stand_by())
        # With its own credentials the gateway logs in by itself, soon after its start: the tools show that it did.
        if auth["type"] == "client_credentials" or await person.is_connected():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WITHIN_S), caller(gate.url, stateless=stateless, capabilities={}) as one:
                    await use_every_tool(one)
        standing_by.cancel()
        await gate.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1], os.environ))
