"""People log in to the console with a real provider in a real Chromium: roles, a new login for a decision, and the logout.

The gateway is `localhost` and the provider `127.0.0.1`, so that for the browser they are two sites and its rules for cookies count.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.console.console_setup import Console
from tests.harness.browser import Browser, Chromium
from tests.harness.gateway import Gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import free_port
from tests.identity.real_provider import RealProvider, real_provider, web_client

pytestmark = [pytest.mark.peers("browser", "oidc"), pytest.mark.slow]


def config(port: int, provider: RealProvider) -> dict[str, Any]:
    login = {
        "issuer": provider.url,
        "client_id": "console",
        "client_secret": "secret-of-a-client",
        "scopes": ["openid"],
    }
    return {
        "public_url": f"http://localhost:{port}",
        "servers": {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
        "tokens": [{"id": "agent", "sha256": hashlib.sha256(b"agent-token").hexdigest()}],
        "auth": {"login": {**login, "claims": {"groups": "groups"}, "roles": {"approver": ["oncall"]}}},
        "governance": {"rules": [{"match": "delete_*", "action": "approve", "approval": "money"}]},
        "approval": {"money": {"max_auth_age": "30m"}},
    }


@asynccontextmanager
async def setup(chromium: Chromium, folder: Path) -> AsyncIterator[tuple[Console, RealProvider, str]]:
    port = free_port()
    callback = f"http://localhost:{port}/login/callback"
    people = {"ann": {"groups": ["oncall"]}, "eve": {"groups": ["sales"]}}
    async with (
        real_provider(accounts=people, clients=[web_client("console", [callback])]) as provider,
        httpx2.AsyncClient(verify=NO_TLS) as http,
        chromium.window() as browser,
    ):
        (folder / "state").mkdir()
        gateway = Gateway(folder, port)
        gateway.write(config(port, provider))
        await gateway.start()
        try:
            yield Console(gateway, http, browser), provider, f"http://localhost:{port}"
        finally:
            await gateway.kill()


async def at_the_provider(browser: Browser, name: str) -> None:
    """Fill in the provider's forms until the browser is back at the gateway."""
    while (await browser.url()).startswith("http://127.0.0.1:"):
        if await browser.all("input[name=login]"):
            await browser.type("input[name=login]", name)
            await browser.type("input[name=password]", "any")
        await browser.click("button[type=submit]")
    await browser.until("document.querySelector('header .who')")


async def test_a_person_logs_in_decides_after_a_fresh_login_and_logs_out_everywhere(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with setup(chromium, tmp_path) as (console, provider, base):
        browser = console.browser
        await browser.open(f"{base}/inbox")
        await browser.click("#provider")
        await at_the_provider(browser, "ann")
        assert await browser.url() == f"{base}/inbox", "back to where she wanted to be"
        await browser.submit("header .who button")
        assert await browser.text("#account b") == f"{provider.url}#ann"
        assert await browser.text("#roles") == "approver"

        await provider.age_logins()
        await browser.click("#account button:not([name])")
        assert (await browser.url()).endswith("/login")
        await browser.click("#provider")
        await browser.until("document.querySelector('header .who')")
        await console.call("agent", "files__delete_file", name="notes.txt")
        (waiting,) = await console.api("GET", "/api/v1/approvals")
        await browser.open(f"{base}/approvals/{waiting['id']}")
        await browser.click("button.approve")
        assert 'id="fresh"' in await browser.source()
        assert [one["state"] for one in await console.api("GET", "/api/v1/approvals")] == ["open"]
        await browser.click("#provider")
        assert await browser.all("input[name=password]"), "the provider asks again although she is logged in there"
        await at_the_provider(browser, "ann")
        assert await browser.url() == f"{base}/approvals/{waiting['id']}"
        await browser.click("button.approve")
        assert await console.api("GET", "/api/v1/approvals") == []

        async with httpx2.AsyncClient(verify=NO_TLS, timeout=30) as elsewhere:
            begun = await elsewhere.get(f"{base}/login/oidc")
            landed = await provider.log_in(begun.headers["location"], "ann")
            assert (await elsewhere.get(landed)).status_code == 200
            assert (await elsewhere.get(f"{base}/inbox")).status_code == 200
            await browser.submit("header .who button")
            await browser.click("#account button[name=everywhere]")
            assert (await browser.url()).endswith("/login")
            assert (await elsewhere.get(f"{base}/inbox")).status_code == 303


async def test_a_user_without_role_sees_nothing_and_may_not_decide(chromium: Chromium, tmp_path: Path) -> None:
    async with setup(chromium, tmp_path) as (console, _provider, base):
        browser = console.browser
        await console.call("agent", "files__delete_file", name="notes.txt")
        (waiting,) = await console.api("GET", "/api/v1/approvals")
        await browser.open(f"{base}/inbox")
        await browser.click("#provider")
        await at_the_provider(browser, "eve")
        assert await browser.all("#roles") == []
        await browser.open(f"{base}/approvals/{waiting['id']}")
        assert await browser.all("button.approve") == []
        assert "notes.txt" not in await browser.source()
