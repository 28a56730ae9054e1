"""A headless browser, driven over WebDriver's own HTTP protocol: open a page, find elements, click, and read what is shown.

Chromium and chromedriver come from the machine; tests that need them carry `@pytest.mark.peers("browser")`, by which they all go
to one worker (`tests/harness/sharing.py`), and have them from the fixture `chromium`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.harness.absent import find_browser, find_driver
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import START_DEADLINE, die_with_parent, free_port

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1100,1400",
    # Without these options a page takes 50% more CPU time: a process for drawing, a spare process for the next site, pages
    # that are kept for a way back, and histories and caches on disk.
    "--in-process-gpu",
    "--disable-partial-raster",
    "--disable-lcd-text",
    "--disable-smooth-scrolling",
    "--disable-extensions",
    "--incognito",
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=SpareRendererForSitePerProcess,BackForwardCache,PaintHolding,Translate,OptimizationHints,MediaRouter",
)
_WITHOUT_PICTURES = ("--disable-threaded-compositing",)
"""Saves processor time, too, but Chromium then never answers a request for a screenshot."""


class Browser:
    def __init__(self, http: httpx2.AsyncClient, base: str) -> None:
        self._http, self._base = http, base

    async def _do(self, method: str, path: str, body: Any = None) -> Any:
        sent = {} if body is None and method == "POST" else body
        reply = await self._http.request(method, self._base + path, json=sent, timeout=120)
        value = reply.json()["value"]
        assert reply.status_code == 200, value
        return value

    async def open(self, url: str) -> None:
        await self._do("POST", "/url", {"url": url})

    async def url(self) -> str:
        return str(await self._do("GET", "/url"))

    async def source(self) -> str:
        return str(await self._do("GET", "/source"))

    async def all(self, css: str) -> list[str]:
        found = await self._do("POST", "/elements", {"using": "css selector", "value": css})
        return [each[_ELEMENT] for each in found]

    async def one(self, css: str) -> str:
        found = await self.all(css)
        assert len(found) == 1, f"{len(found)} elements match {css}"
        return found[0]

    async def text(self, css: str) -> str:
        return str(await self._do("GET", f"/element/{await self.one(css)}/text"))

    async def click(self, css: str) -> None:
        """Every button and link of our pages leads to another page: the click is over when the old page is gone.

        The driver itself answers as soon as the click is made, which may be before the browser has left the page.
        """
        old_page = await self.one("html")
        await self._do("POST", f"/element/{await self.one(css)}/click")
        async with asyncio.timeout(120):
            while await self._is_there(old_page) or await self.run("return document.readyState") != "complete":
                await asyncio.sleep(0.05)

    async def _is_there(self, element: str) -> bool:
        reply = await self._http.get(f"{self._base}/element/{element}/name", timeout=120)
        return reply.status_code == 200

    async def type(self, css: str, text: str) -> None:
        await self._do("POST", f"/element/{await self.one(css)}/value", {"text": text})

    async def run(self, script: str) -> Any:
        """The driver's own script, which a page's content security policy does not stop."""
        return await self._do("POST", "/execute/sync", {"script": script, "args": []})

    async def submit(self, css: str) -> None:
        """Click where the page may update itself without a navigation."""
        await self._do("POST", f"/element/{await self.one(css)}/click")

    async def press(self, keys: str) -> None:
        """Send keys, one after the other, to the focused element."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        await self._do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    async def drag(self, css: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag with the left button between two points of an element, each given as a share of its width and height."""
        box = await self.run(f"return document.querySelector({css!r}).getBoundingClientRect().toJSON()")
        (x1, y1), (x2, y2) = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in (start, end)]
        steps = [
            {"type": "pointerMove", "x": int(x1), "y": int(y1)},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "x": int((x1 + x2) / 2), "y": int(y2), "duration": 50},
            {"type": "pointerMove", "x": int(x2), "y": int(y2), "duration": 50},
            {"type": "pointerUp", "button": 0},
        ]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps}
        await self._do("POST", "/actions", {"actions": [mouse]})

    async def refuse(self, *addresses: str) -> None:
        """Block URLs that match these patterns (with `*`) from now on."""
        await self._command("Network.enable", {})
        await self._command("Network.setBlockedURLs", {"urls": list(addresses)})

    @asynccontextmanager
    async def pages_begin_with(self, script: str) -> AsyncIterator[None]:
        """Run this in every page that is opened inside, before its own scripts."""
        added = await self._command("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        try:
            yield
        finally:
            await self._command("Page.removeScriptToEvaluateOnNewDocument", added)

    @asynccontextmanager
    async def frame(self, css: str) -> AsyncIterator[None]:
        """Inside the block, queries apply to the document in this frame."""
        await self._do("POST", "/frame", {"id": {_ELEMENT: await self.one(css)}})
        try:
            yield
        finally:
            await self._do("POST", "/frame/parent")

    async def size(self, width: int, height: int) -> None:
        """Set the viewport size of the page, for example that of a phone."""
        how = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._command("Emulation.setDeviceMetricsOverride", how)

    async def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        wanted = [{"name": "prefers-color-scheme", "value": name}]
        await self._command("Emulation.setEmulatedMedia", {"features": wanted})

    async def _command(self, name: str, params: Any) -> Any:
        return await self._do("POST", "/goog/cdp/execute", {"cmd": name, "params": params})

    async def until(self, script: str) -> None:
        """Wait for a fact of the page: an expression that becomes true."""
        try:
            async with asyncio.timeout(120):
                while not await self.run(f"return Boolean({script})"):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = await self.run("return document.body.innerText")
            raise AssertionError(f"{script} did not become true; the page shows: {str(shown)[:2000]}") from None

    async def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(await self._do("GET", "/screenshot")))


class Chromium:
    """One Chromium with its driver for many tests, each with its own tab and cookies: starting a browser takes as long as
    loading thirty pages."""

    def __init__(self, driver: str, profile: str, flags: tuple[str, ...]) -> None:
        self._driver, self._profile, self._flags = driver, profile, flags
        self._session: str | None = None

    @asynccontextmanager
    async def window(self) -> AsyncIterator[Browser]:
        async with httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http:
            if self._session is None:
                self._session = await self._started(http)
            try:
                yield Browser(http, self._session)
            finally:
                await self._renew(http, self._session)

    async def _started(self, http: httpx2.AsyncClient) -> str:
        options = {"binary": find_browser(), "args": [*self._flags, f"--user-data-dir={self._profile}"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        reply = await http.post(f"{self._driver}/session", json=wanted, timeout=150)
        said = reply.json()["value"]
        assert reply.status_code == 200, said
        return f"{self._driver}/session/{said['sessionId']}"

    async def _renew(self, http: httpx2.AsyncClient, session: str) -> None:
        """Replace this tab by a new one with the same settings. A browser that cannot do that is not used again."""
        self._session = None
        fresh = await http.post(f"{session}/window/new", json={"type": "tab"})
        await http.delete(f"{session}/window")
        await http.post(f"{session}/window", json={"handle": fresh.json()["value"].get("handle")})
        clear = [{"cmd": f"Network.{name}", "params": {}} for name in ("clearBrowserCookies", "clearBrowserCache")]
        said = [await http.post(f"{session}/goog/cdp/execute", json=each) for each in clear]
        if all(reply.status_code == 200 for reply in said):
            self._session = session
        else:
            await http.delete(session)

    def end(self) -> None:
        if self._session is not None:
            httpx2.delete(self._session, timeout=120, verify=NO_TLS)


@contextmanager
def chromium(*, pictures: bool = False) -> Iterator[Chromium]:
    """A browser from the first requested window until the block ends; `pictures`: with screenshots."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(
            [find_driver() or "chromedriver", f"--port={port}"],
            env={"HOME": profile, **os.environ},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
        made = Chromium(f"http://127.0.0.1:{port}", profile, _FLAGS if pictures else (*_FLAGS, *_WITHOUT_PICTURES))
        try:
            _until_it_listens(driver, port)
            yield made
            made.end()
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def _until_it_listens(driver: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < deadline, "the driver does not listen"
        time.sleep(0.02)
