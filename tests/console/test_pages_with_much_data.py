"""Every page and action with 200,000 rows of history, 10,000 open tasks, a million audit rows and 40 servers in a real Chromium:
`make pages-with-much-data`. At both sizes and in both colour schemes each page loads, fits the screen and has no barrier; each
action is done at both sizes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.console import PAGES
from tests.benchmarks.growth import growing_server
from tests.console.accessibility import a_search_for_barriers
from tests.console.console_setup import CONFIG, Console, a_console, settled
from tests.console.large_store import SERVERS, TOOLS_OF_SERVER, Amounts, fill_sqlite
from tests.harness.browser import Browser, Chromium

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.peers("browser"), pytest.mark.long]


async def _names(console: Console) -> dict[str, str]:
    """One item of each kind that has a page."""
    (held, *_) = await console.api("GET", "/api/v1/approvals?limit=1")
    (ended, *_) = (await console.api("GET", "/api/v1/history?kind=task&limit=1"))["rows"]
    (opened, *_) = (await console.api("GET", "/api/v1/tasks?state=open&limit=1"))["tasks"]
    return {"open": opened["id"], "ended": ended["id"], "approval": held["id"]}


RULES = [{"match": "get_3", "action": "approve"}]
PHONE, DESK = 390, 1280


@asynccontextmanager
async def console_with_much_data(chromium: Chromium, folder: Path) -> AsyncIterator[Console]:
    (folder / "state").mkdir()
    await fill_sqlite(folder / "state" / "taskgate.db", Amounts())
    async with growing_server(TOOLS_OF_SERVER) as url:
        servers = {f"server-{number}": {"url": url} for number in range(SERVERS)}
        limits = {**CONFIG["limits"], "open_tasks_per_caller": 20_000, "pending_approvals_per_caller": 20_000}
        config: dict[str, Any] = {
            **CONFIG,
            "servers": servers,
            "governance": {**CONFIG["governance"], "rules": RULES},
            "tasks": {"execute_on": "demand"},
            "limits": limits,
        }
        async with a_console(chromium, folder, config) as console:
            yield console


async def opened(console: Console, path: str) -> None:
    await console.browser.open(console.base + path)
    await settled(console.browser)


async def shown(browser: Browser, pattern: str, css: str = "main") -> None:
    """Wait until an element has a text that matches."""
    await browser.until(f"new RegExp({pattern!r}).test(document.querySelector({css!r})?.textContent)")


async def filters_and_columns(console: Console) -> None:
    browser = console.browser
    await opened(console, "/tasks")
    await browser.type("#server", "server-7")
    await browser.click("form.filter button")
    await browser.until("location.search.includes('server=server-7')")
    rows = "return [...document.querySelectorAll('table.ended tbody th')].map(row => row.textContent)"
    assert all("server-7" in str(row) for row in await browser.run(rows))
    await browser.click("a[rel='next']")
    await browser.until("location.search.includes('after=')")
    await opened(console, "/tasks?text=nothing")
    await shown(browser, "No matching tasks")
    await opened(console, "/tasks?since=10y")
    await opened(console, "/tasks?state=bad")
    await browser.run("document.querySelector('details.small').open = true")
    await browser.run("document.querySelector('input[name=column][value=client]').checked = true")
    await browser.click("form.choices button")
    await browser.until("[...document.querySelectorAll('table.ended th')].some(head => head.textContent === 'Client')")
    await browser.click("table.ended thead a[href*='took']")
    await shown(browser, "Sorted")
    assert "outcome" in str(
        await browser.run("return fetch(document.querySelector('a[href*=csv]').href).then(r => r.text())")
    )


async def cancelling_and_running_again(console: Console) -> None:
    browser = console.browser
    await opened(console, "/tasks?state=open")
    chosen = await browser.run(
        "return [...document.querySelectorAll('#tasks input')].slice(0, 2).map(box => (box.checked = true, box.value))"
    )
    await browser.click("#open button.deny")
    await browser.until("location.pathname === '/tasks' && document.readyState === 'complete'")
    for task_id in chosen:
        assert (await console.api("GET", f"/api/v1/tasks/{task_id}"))["state"] == "cancelled"
    (row, *_) = (await console.api("GET", "/api/v1/tasks?state=open&limit=1"))["tasks"]
    await opened(console, f"/tasks/{row['id']}")
    await browser.type("#reason", "not needed")
    await browser.click("form.cancel button")
    await shown(browser, "cancelled", "#state")
    await opened(console, f"/tasks/{row['id']}")
    await browser.click("form.rerun button")
    await browser.until("location.pathname.startsWith('/tasks/') && document.readyState === 'complete'")
    await shown(browser, row["id"])


async def decisions(console: Console, number: int) -> None:
    browser = console.browser
    await opened(console, "/inbox")
    for verdict in ("approve", "deny"):
        card = str(await browser.run("return document.querySelector('[data-card]').id")).removeprefix("approval-")
        await browser.click(f"form[action='/approvals/{card}/{verdict}'] button")
        await browser.until("location.pathname === '/inbox' && document.readyState === 'complete'")
        await settled(browser)
        assert (await console.api("GET", f"/api/v1/approvals/{card}"))["state"] != "open"
    made = json.loads(await console.call("build-agent", "server-3__get_3", text=f"undo {number}"))["result"]
    approval = (await console.api("GET", f"/api/v1/tasks/{made['taskId']}"))["approval_id"]
    await opened(console, f"/approvals/{approval}")
    await browser.click(f"form[action='/approvals/{approval}/approve'] button.approve")
    await browser.until("document.readyState === 'complete'")
    assert (await console.api("GET", f"/api/v1/approvals/{approval}"))["state"] == "approved"
    await opened(console, f"/inbox?undo={approval}")
    await browser.click("#undo button")
    await shown(browser, "taken back")
    assert (await console.api("GET", f"/api/v1/approvals/{approval}"))["state"] == "open"


async def finding_and_operating(console: Console, width: int) -> None:
    browser = console.browser
    await opened(console, "/overview")
    await browser.click("p.tabs a[href*='range=week']")
    await browser.until("location.search.includes('range=week') && document.readyState === 'complete'")
    await browser.run("document.querySelector('#charts details.numbers').open = true")
    await browser.run("document.querySelector('#charts details.numbers tbody a').click()")
    await browser.until("location.pathname === '/tasks' && location.search.includes('until=')")
    if width == DESK:
        await settled(browser)
        await browser.press("/")
        await browser.press("server-17")
        await browser.until("/server-17/.test(document.getElementById('results').textContent)")
        await browser.press("\ue007")
        await browser.until("location.pathname === '/servers/server-17'")
    await opened(console, "/servers/server-17")
    for action, text in (("reconnect", "reconnected"), ("drain", "drained"), ("enable", "enabled")):
        await browser.click(f"form[action='/servers/server-17/{action}'] button")
        await shown(browser, f"server-17 is {text}", "main .note")
    await opened(console, "/audit")
    await browser.type("#find-caller", "acme/user-000003")
    await browser.click("form.filter button")
    await browser.until("location.search.includes('caller=') && document.querySelector('#rows tbody tr')")
    await browser.click("p.more a")
    await browser.until("location.search.includes('before=')")
    await opened(console, "/try?tool=server-5__get_5&scope=default")
    await browser.run(
        "document.querySelector('main form.stack textarea, main form.stack input:not([type=hidden])').value = 'hello'"
    )
    await browser.click("main form.stack button.approve")
    await shown(browser, "hello")


async def test_every_action_works_with_much_data(chromium: Chromium, tmp_path: Path) -> None:
    async with console_with_much_data(chromium, tmp_path) as console:
        for number, width in enumerate((PHONE, DESK)):
            await console.browser.size(width, 900)
            await filters_and_columns(console)
            print(f"{width}: filters", flush=True)
            await cancelling_and_running_again(console)
            print(f"{width}: cancelled and run again", flush=True)
            await decisions(console, number)
            print(f"{width}: decided and taken back", flush=True)
            await finding_and_operating(console, width)
            print(f"{width}: found and operated", flush=True)


@pytest.mark.peers("axe")
async def test_every_page_is_accessible_and_fits_the_screen_with_much_data(chromium: Chromium, tmp_path: Path) -> None:
    found: list[str] = []
    async with (
        console_with_much_data(chromium, tmp_path) as console,
        a_search_for_barriers(console.browser) as barriers,
    ):
        names = await _names(console)
        for page in PAGES:
            await opened(console, page.format(**names))
            seen = [f"{page} {one}" for one in await barriers.on_this_page()]
            print(f"{page}: {len(seen)} barriers", flush=True)
            found += seen
    assert not found, "\n".join(found)
