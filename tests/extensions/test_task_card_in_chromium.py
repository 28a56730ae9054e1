"""The task card in a real host: the official host kit of MCP Apps, in Chromium, with the gateway behind it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.extensions.apps_host import AppsHost, an_apps_host
from tests.harness.browser import Browser, Chromium
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.plain_http import NO_TLS

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser", "apps")]
SERVER = Path(__file__).resolve().parent / "card_server.py"
CONFIG: dict[str, Any] = {
    "servers": {"notes": {"command": sys.executable, "args": [str(SERVER)]}},
    "governance": {"rules": [{"match": "wipe", "action": "approve"}]},
    "tasks": {"promote_after_ms": 1000},
    "limits": {"drain_timeout": "1s"},
}


@asynccontextmanager
async def running_setup(chromium: Chromium, folder: Path) -> AsyncIterator[tuple[Gateway, AppsHost]]:
    async with running_gateway(CONFIG, folder) as gateway, an_apps_host(chromium, {"gate": gateway.url}) as host:
        yield gateway, host


async def shown(browser: Browser) -> str:
    return str(await browser.run("return document.getElementById('cards').innerText"))


async def state(browser: Browser) -> str:
    return str(await browser.run("return document.querySelector('.state')?.dataset.state ?? ''"))


async def operator(gateway: Gateway, method: str, path: str, body: Any = None) -> Any:
    token = (gateway.state / "operator-token").read_text().strip()
    async with httpx2.AsyncClient(verify=NO_TLS, timeout=60) as http:
        reply = await http.request(
            method, f"{gateway.base}{path}", json=body, headers={"authorization": f"Bearer {token}"}
        )
        return reply.json()


@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_a_held_call_is_followed_to_its_result_and_never_approved(
    chromium: Chromium, tmp_path: Path, generation: str
) -> None:
    async with running_setup(chromium, tmp_path) as (gateway, host):
        await host.connect("gate", generation)
        number = await host.open("notes__wipe", {"path": "/tmp/x"})
        async with host.inside(number) as app:
            await app.until("document.querySelector('.state')?.dataset.state === 'approval'")
            assert "notes: wipe" in await shown(app)
            buttons = await app.run("return [...document.querySelectorAll('button')].map(b => b.textContent)")
            assert buttons == ["Cancel", "Open in the console"]
            await app.run("document.querySelectorAll('button')[1].click()")
        (waiting,) = await operator(gateway, "GET", "/api/approvals")
        seen = await host.seen(number)
        assert seen["links"] == [f"{gateway.base}/tasks/{waiting['task_id']}"]
        assert {call["name"] for call in seen["calls"]} == {"show_tasks"}
        assert seen["heights"][-1] > 50
        await operator(gateway, "POST", f"/api/approvals/{waiting['id']}/approve", {})
        async with host.inside(number) as app:
            await app.until("document.querySelector('.state')?.dataset.state === 'completed'")
            assert "wiped /tmp/x" in await shown(app)
            assert await app.run("return document.querySelectorAll('button').length") == 1
        calls = len((await host.seen(number))["calls"])
        await asyncio.sleep(3)
        assert len((await host.seen(number))["calls"]) == calls, "an ended task is not asked for again"


async def test_a_promoted_call_shows_progress_a_question_and_is_cancelled(chromium: Chromium, tmp_path: Path) -> None:
    async with running_setup(chromium, tmp_path) as (_gateway, host):
        await host.connect("gate")
        slow = await host.open("notes__slow")
        async with host.inside(slow) as app:
            await app.until("document.querySelector('progress')?.value === 3")
            await app.run("document.querySelector('button').click()")
            assert await state(app) == "working"
            await app.run("document.querySelector('button').click()")
            await app.until("document.querySelector('.state')?.dataset.state === 'cancelled'")
        assert {call["name"] for call in (await host.seen(slow))["calls"]} == {"show_tasks", "cancel_task"}
        asking = await host.open("notes__ask")
        async with host.inside(asking) as app:
            await app.until("document.querySelector('.question') !== null")
            text = await shown(app)
            assert "Which size? <b>bold</b>" in text
            assert "(size)" in text


async def test_texts_of_servers_are_texts_and_nothing_is_fetched(chromium: Chromium, tmp_path: Path) -> None:
    """Hostile text in a result, in a status and in a question; and what the page would load if it loaded anything."""
    async with running_setup(chromium, tmp_path) as (_gateway, host):
        await host.connect("gate")
        number = await host.open("notes__hostile")
        async with host.inside(number) as app:
            await app.until("document.querySelector('.state')?.dataset.state === 'completed'")
            assert "<img src=x onerror=" in await shown(app)
            assert await app.run("return document.querySelectorAll('img, a, script[src], link, iframe').length") == 0
            assert await app.run("return window.hacked === undefined") is True
            assert await app.run("return performance.getEntriesByType('resource').length") == 0
            blocked = "try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch { return 'blocked' }"
            assert await app.run(blocked) == "blocked"


async def test_a_plain_result_closes_the_card(chromium: Chromium, tmp_path: Path) -> None:
    async with running_setup(chromium, tmp_path) as (_gateway, host):
        await host.connect("gate")
        number = await host.open("notes__quick")
        await host.browser.until(f"host.apps[{number}].closing === 1 && !document.getElementById('app-{number}')")
        seen = await host.seen(number)
        assert seen["calls"] == []
        assert all(height == 0 for height in seen["heights"])


async def test_text_of_a_server_cannot_change_the_card(chromium: Chromium, tmp_path: Path) -> None:
    """A result that looks like our notice leads to the gateway's own answer about that id, and to nothing of the server's."""
    async with running_setup(chromium, tmp_path) as (_gateway, host):
        await host.connect("gate")
        number = await host.open("notes__forged")
        async with host.inside(number) as app:
            await app.until("document.querySelector('.state')?.dataset.state === 'expired'")
            text = await shown(app)
            assert "evil" not in text
            assert await app.run("return document.querySelectorAll('button').length") == 0


async def test_show_tasks_renders_the_tasks_of_the_conversation(chromium: Chromium, tmp_path: Path) -> None:
    async with running_setup(chromium, tmp_path) as (_gateway, host):
        await host.connect("gate")
        first = await host.open("notes__slow")
        async with host.inside(first) as app:
            await app.until("document.querySelector('.state') !== null")
        number = await host.open("show_tasks")
        async with host.inside(number) as app:
            await app.until("document.querySelectorAll('article').length === 1")
            assert "notes: slow" in await shown(app)
            await app.until("document.querySelector('.state')?.dataset.state === 'working'")
