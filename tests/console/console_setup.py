"""A gateway with the demo server, some rules and some history, and a browser that is logged in: for tests and pictures."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from tests.harness.browser import Browser, Chromium
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.plain_http import NO_TLS

PAGES = (
    "/overview",
    "/overview?range=week",
    "/tools",
    "/tool?server=files&tool=list_files",
    "/callers",
    "/caller?name=build-agent",
    "/find?text=a",
    "/tasks",
    "/inbox",
    "/servers",
    "/servers/files",
    "/scopes",
    "/scopes/default",
    "/rules",
    "/usage",
    "/waterfall",
    "/audit",
    "/system",
    "/try",
    "/try?like=dangerous",
    "/approvals?all=1",
    "/grants",
    "/definitions",
    "/find?q=files",
)
CONFIG: dict[str, Any] = {
    "servers": {
        "files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]},
        "archive": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]},
    },
    "tokens": [
        {"id": "research-agent", "sha256": hashlib.sha256(b"research-agent-token").hexdigest()},
        {"id": "build-agent", "sha256": hashlib.sha256(b"build-agent-token").hexdigest()},
        {"id": "reviewer", "sha256": hashlib.sha256(b"reviewer-token").hexdigest(), "roles": ["approver"]},
    ],
    "governance": {
        "rules": [{"match": "delete_*", "action": "approve"}, {"match": "write_*", "action": "approve"}],
        "record": {},
    },
    "tasks": {"grace_ms": 300, "execute_on": "approval"},
    # The reports below run for minutes: stopping the gateway does not wait for them.
    "limits": {"drain_timeout": "1s", "busy_after": "60s"},
}


@dataclass(slots=True)
class Console:
    gateway: Gateway
    http: httpx2.AsyncClient
    browser: Browser

    @property
    def base(self) -> str:
        return self.gateway.base

    async def api(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        """As the operator, or as the principal of the token."""
        token = token or (self.gateway.state / "operator-token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        return (await self.http.request(method, self.base + path, json=body, headers=headers, timeout=120)).json()

    async def call(self, who: str, tool: str, *, key: str | None = None, **arguments: Any) -> Any:
        """A call of an agent that declares tasks; what it gets back. Equal calls with different keys are different calls."""
        meta: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
            "io.modelcontextprotocol/clientInfo": {"name": "agent", "version": "1"},
        }
        if key is not None:
            meta["taskgate/idempotencyKey"] = key
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        headers = {
            "authorization": f"Bearer {who}-token",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": tool,
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return (await self.http.post(self.gateway.url, json=body, headers=headers, timeout=120)).text

    async def empty_inbox(self) -> None:
        """Deny what still waits for people. The reviewer does: a person may not decide on their own call, the operator included."""
        for held in await self.api("GET", "/api/v1/approvals"):
            reply = await self.api("POST", f"/api/v1/approvals/{held['id']}/deny", {}, "reviewer-token")
            assert reply["state"] == "denied", reply
        assert await self.api("GET", "/api/v1/approvals") == []

    @asynccontextmanager
    async def configured(self, **changes: Any) -> AsyncIterator[None]:
        """The gateway with some settings changed, and as before for the next test, also after a failure."""
        await self.gateway.reload({**CONFIG, **changes})
        try:
            yield
        finally:
            await self.gateway.reload(CONFIG)

    async def _leave(self) -> None:
        """Close the page of an earlier test: after an upgrade it reloads itself, which would end the next navigation."""
        await self.browser.open("about:blank")

    async def log_in_with(self, token: str) -> None:
        await self._leave()
        await self.browser.open(self.base + "/login")
        await self.browser.until("document.getElementById('token')")
        await self.browser.type("#token", token)
        await self.browser.click(".login form button")

    async def log_in(self) -> None:
        link = (await self.api("POST", "/api/login-links", {}))["url"]
        await self._leave()
        await self.browser.open(link)
        await self.browser.click("form button")

    async def history(self) -> None:
        """What a morning leaves behind: fast calls, slow ones, some that wait for people."""
        for who in ("research-agent", "build-agent"):
            for _ in range(6):
                await self.call(who, "files__list_files")
            await self.call(who, "archive__read_file", name="notes.txt")
        await self.call("research-agent", "files__slow_report", seconds=600)
        await self.call("build-agent", "archive__slow_report", seconds=300)
        await self.call("build-agent", "files__slow_report", seconds=1)
        await self.call("build-agent", "files__delete_file", name="budget.txt")
        await self.call("research-agent", "archive__write_file", name="summary.txt", text="Three findings.")


@asynccontextmanager
async def a_console(
    chromium: Chromium, folder: Path, config: dict[str, Any] = CONFIG, listed: int | None = None
) -> AsyncIterator[Console]:
    """`listed`: how many of the servers return their lists; all of them if None."""
    async with (
        running_gateway(config, folder) as gateway,
        httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http,
        chromium.window() as browser,
    ):
        console = Console(gateway, http, browser)
        async with asyncio.timeout(120):
            while gateway.log.count("server listed") < (len(config["servers"]) if listed is None else listed):
                await asyncio.sleep(0.1)
        await console.log_in()
        yield console


async def settled(browser: Browser) -> None:
    """The page is there and its script runs."""
    await browser.until("document.readyState === 'complete' && document.body.dataset.live === 'yes'")
    await asyncio.sleep(0)
