"""A host of MCP Apps in Chromium: the page of `host_page/` on the official host kit, its sandbox at another origin, and the way
from the page to gateways and servers, because a browser sends MCP to its own origin only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx2
import uvicorn
from tests.harness.absent import HOME
from tests.harness.browser import Browser, Chromium
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import free_port, run_to_end

PAGES = Path(__file__).resolve().parent / "host_page"
PEER = HOME / "apps"
_PASSED_ON = (
    "accept",
    "content-type",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "last-event-id",
)


def policy_of(csp: Mapping[str, Any]) -> str:
    """The content security policy that a host enforces for what an app declares (SEP-1865)."""
    resources, connects = " ".join(csp.get("resourceDomains") or ()), " ".join(csp.get("connectDomains") or ())
    frames, bases = " ".join(csp.get("frameDomains") or ()), " ".join(csp.get("baseUriDomains") or ())
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-inline' {resources}; style-src 'self' 'unsafe-inline' {resources}; "
        f"connect-src {connects or chr(39) + 'none' + chr(39)}; img-src 'self' data: {resources}; font-src 'self' {resources}; "
        f"media-src 'self' data: {resources}; frame-src {frames or chr(39) + 'self' + chr(39)}; object-src 'none'; "
        f"base-uri {bases or chr(39) + 'self' + chr(39)}"
    )


@dataclass(slots=True)
class AppsHost:
    browser: Browser
    url: str

    async def connect(self, target: str, generation: str = "2025") -> None:
        await self.browser.open(self.url)
        await self._do(f"host.connect({json.dumps(target)}, {json.dumps(generation)})", "host.tools.size > 0")

    async def _listed(self, tool: str) -> None:
        """Wait until the tool is listed: programs behind a gateway may still be starting."""
        async with asyncio.timeout(120):
            while tool not in await self.tools():
                await self.browser.run("host.listed = false")
                await self._do("host.list().then(() => host.listed = true)", "host.listed")

    async def tools(self) -> set[str]:
        return set(await self.browser.run("return [...host.tools.keys()]"))

    async def open(self, tool: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Call a tool and wait until its app is ready. The number of the app."""
        await self._listed(tool)
        number = int(await self.browser.run("return host.apps.length"))
        call = f"host.open({json.dumps(tool)}, {json.dumps(dict(arguments or {}))})"
        await self._do(call, f"host.apps[{number}]?.ready || host.apps[{number}]?.result")
        return number

    async def read(self, tool: str) -> dict[str, Any]:
        """The content of a tool's interface."""
        await self._listed(tool)
        await self.browser.run("host.contents = null")
        await self._do(f"host.read({json.dumps(tool)})", "host.contents")
        (content,) = await self.browser.run("return host.contents")
        return dict(content)

    async def call(self, tool: str) -> str:
        """The text of a tool's result."""
        await self.browser.run("host.called = null")
        await self._do(f"host.call({json.dumps(tool)})", "host.called")
        return str(await self.browser.run("return host.called.content.map(block => block.text).join('')"))

    async def _do(self, work: str, fact: str) -> None:
        await self.browser.run(f"host.failed = ''; host.begin(() => {work})")
        await self.browser.until(f"host.failed || {fact}")
        assert not await self.browser.run("return host.failed"), await self.browser.run("return host.failed")

    async def seen(self, number: int) -> dict[str, Any]:
        """The requests of this app to its host so far."""
        found: dict[str, Any] = await self.browser.run(f"return host.apps[{number}]")
        return found

    @asynccontextmanager
    async def inside(self, number: int) -> AsyncIterator[Browser]:
        """The browser, switched to the app's own document."""
        async with self.browser.frame(f"#app-{number}"), self.browser.frame("#inner"):
            yield self.browser


@asynccontextmanager
async def an_apps_host(chromium: Chromium, targets: Mapping[str, str]) -> AsyncIterator[AppsHost]:
    """`targets` are the addresses of MCP endpoints by the names under which the page reaches them."""
    bundle = await _bundle()
    async with httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http, _serving(_sandbox) as sandbox:

        async def page(scope: Any, receive: Any, send: Any) -> None:
            path = scope["path"]
            if path.startswith("/to/"):
                await _pass_on(http, targets[path.split("/")[2]], scope, receive, send)
            elif path == "/host.js":
                await _answer(send, bundle, "text/javascript")
            else:
                text = (PAGES / "host.html").read_text().replace("@SANDBOX@", f"{sandbox}/sandbox.html")
                await _answer(send, text.encode(), "text/html")

        async with _serving(page) as url, chromium.window() as browser:
            yield AppsHost(browser, url)


async def _bundle() -> bytes:
    """The page's script with the host kit in it, made once for each version of both."""
    made = PEER / "host.bundle.js"
    source = (PAGES / "host.mjs").read_text()
    copy = PEER / "host.mjs"
    if not made.exists() or not copy.exists() or copy.read_text() != source:
        copy.write_text(source)
        command = [PEER / "node_modules" / ".bin" / "esbuild", copy, "--bundle", "--format=iife", f"--outfile={made}"]
        code, _, err = await run_to_end([str(part) for part in command], within=120)
        assert code == 0, err
    return made.read_bytes()


@asynccontextmanager
async def _serving(app: Any) -> AsyncIterator[str]:
    port = free_port()
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def _sandbox(scope: Any, _receive: Any, send: Any) -> None:
    csp = json.loads(parse_qs(scope["query_string"].decode()).get("csp", ["{}"])[0])
    await _answer(send, (PAGES / "sandbox.html").read_bytes(), "text/html", policy_of(csp))


async def _answer(send: Any, body: bytes, kind: str, policy: str = "") -> None:
    headers = [(b"content-type", f"{kind}; charset=utf-8".encode()), (b"cache-control", b"no-store")]
    headers += [(b"content-security-policy", policy.encode())] if policy else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _pass_on(http: httpx2.AsyncClient, target: str, scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    sent = {k.decode(): v.decode() for k, v in scope["headers"] if k.decode() in _PASSED_ON}
    async with http.stream(scope["method"], target, headers=sent, content=body or None) as reply:
        kept = [(k.encode(), v.encode()) for k, v in reply.headers.items() if k in ("content-type", "mcp-session-id")]
        await send({"type": "http.response.start", "status": reply.status_code, "headers": kept})
        gone = asyncio.create_task(receive())
        try:
            async for part in reply.aiter_raw():
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b""})
