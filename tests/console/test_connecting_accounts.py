"""People connect accounts in a real Chromium with a real provider: from a link of another site, and from the console.

The gateway is `localhost` and the provider `127.0.0.1`, so that for the browser they are two sites and its rules for cookies count.
The server is a second gateway that takes the provider's tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.harness.browser import Browser, Chromium
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port
from tests.identity.accounts import digest
from tests.identity.real_provider import RealProvider, real_provider

pytestmark = [pytest.mark.peers("browser", "oidc"), pytest.mark.slow]


@dataclass(slots=True)
class Setup:
    gateway: Gateway
    provider: RealProvider
    browser: Browser
    base: str

    async def log_in(self, token: str) -> None:
        await self.browser.open(f"{self.base}/login")
        await self.browser.type("input[name=token]", token)
        await self.browser.click("main form button")
        await self.browser.until("document.querySelector('header .who')")

    async def log_out(self) -> None:
        await self.browser.open(f"{self.base}/inbox")
        await self.browser.submit("header .who button")
        await self.browser.click("#account button:not([name])")

    async def follow_from_elsewhere(self, address: str) -> None:
        """A page of another site leads the browser there."""
        await self.browser.open(f"{self.provider.url}/.well-known/openid-configuration")
        await self.browser.run(f"location.href = {json.dumps(address)}")
        await self.browser.until("location.host.startsWith('localhost') && document.readyState === 'complete'")

    async def at_the_provider(self, name: str) -> str:
        """Log in and agree at the provider; the text of the page that the browser ends at."""
        await self.browser.until(
            "location.host.startsWith('127.0.0.1') && document.querySelector('button[type=submit]')"
        )
        while (await self.browser.url()).startswith("http://127.0.0.1:"):
            if await self.browser.all("input[name=login]"):
                await self.browser.type("input[name=login]", name)
                await self.browser.type("input[name=password]", "any")
            await self.browser.click("button[type=submit]")
        return await self.browser.text("main")

    async def api(self, method: str, path: str, body: Any = None) -> Any:
        token = (self.gateway.state / "operator-token").read_text().strip()
        async with httpx2.AsyncClient(trust_env=False, timeout=120) as http:
            headers = {"authorization": f"Bearer {token}"}
            return (await http.request(method, f"{self.gateway.base}/api/v1{path}", json=body, headers=headers)).json()

    async def accounts(self) -> list[str | None]:
        return [row["principal"] for row in (await self.api("GET", "/servers/notes/accounts"))["accounts"]]


@asynccontextmanager
async def setup(chromium: Chromium, folder: Path) -> AsyncIterator[Setup]:
    demo = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"], "instances": "shared"}
    async with real_provider(accessTokenTtl=600) as provider, chromium.window() as browser:
        behind = {"servers": {"demo": demo}, "auth": {"jwt": [{"issuer": provider.url}]}}
        async with running_gateway(behind, folder / "server") as server:
            port = free_port()
            (folder / "gate" / "state").mkdir(parents=True)
            gateway = Gateway(folder / "gate", port)
            tokens = [{"id": who, "sha256": digest(f"token-of-{who}")} for who in ("ann", "bob")]
            auth = {"type": "authorization_code", "per_user": True}
            servers = {"notes": {"url": server.url, "auth": auth}}
            gateway.write({"public_url": f"http://localhost:{port}", "tokens": tokens, "servers": servers})
            await gateway.start()
            try:
                yield Setup(gateway, provider, browser, f"http://localhost:{port}")
            finally:
                await gateway.kill()


async def test_account_is_connected_by_its_own_person_only(chromium: Chromium, tmp_path: Path) -> None:
    async with setup(chromium, tmp_path) as at:
        page = (await at.api("POST", "/servers/notes/accounts", {"principal": "bob"}))["url"]
        assert page.startswith(f"{at.base}/oauth/connect/")

        await at.follow_from_elsewhere(page)
        assert (await at.browser.url()).startswith(f"{at.base}/login?next="), "a link alone opens the login"

        await at.log_in("token-of-ann")
        await at.follow_from_elsewhere(page)
        assert "another caller" in await at.browser.text("main")
        assert await at.browser.all("main form button") == []
        await at.log_out()

        await at.log_in((at.gateway.state / "operator-token").read_text().strip())
        await at.follow_from_elsewhere(page)
        assert "another caller" in await at.browser.text("main"), "the operator is not exempt"
        await at.log_out()
        assert await at.accounts() == []

        await at.log_in("token-of-bob")
        await at.follow_from_elsewhere(page)
        assert "You are logged in as bob" in await at.browser.text("main"), (
            "the Strict cookie arrives in the second step"
        )
        await at.browser.submit("main form button")
        assert "Your account at notes is connected" in await at.at_the_provider("bob-at-the-provider")
        assert await at.accounts() == ["bob"]


async def test_operator_connects_the_shared_account_from_the_console(chromium: Chromium, tmp_path: Path) -> None:
    async with setup(chromium, tmp_path) as at:
        await at.log_in((at.gateway.state / "operator-token").read_text().strip())
        await at.browser.open(f"{at.base}/servers/notes")
        await at.browser.submit("form[action='/servers/notes/connect'] button")
        assert "The shared account at notes is connected" in await at.at_the_provider("lister")
        assert await at.accounts() == [None]
