"""The console in a real Chromium: every page at both sizes in both schemes without a barrier, the inbox by keys alone, and life."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.console.stage import PAGES, Console, a_console, settled
from tests.harness.absent import HOME

pytestmark = [pytest.mark.peers("browser"), pytest.mark.asyncio(loop_scope="module")]
AXE = HOME / "axe" / "node_modules" / "axe-core" / "axe.min.js"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    async with a_console(tmp_path_factory.mktemp("console")) as made:
        yield made


async def barriers(console: Console) -> list[str]:
    """What axe finds on the page as it is; the driver's scripts are not held up by the page's policy."""
    script = AXE.read_text() + "\nreturn axe.run(document, {resultTypes: ['violations']}).then(r => r.violations);"
    found: list[dict[str, Any]] = await console.browser.run(script)
    return [f"{one['id']}: {json.dumps([node['html'][:120] for node in one['nodes'][:3]])}" for one in found]


async def test_a_first_visit_is_guided_and_a_dangerous_call_is_approved_by_keys_alone(console: Console) -> None:
    browser = console.browser
    assert (await browser.url()).endswith("/now")
    assert "Nothing has been called yet" in await browser.text("#tour")
    await browser.open(console.base + "/try?like=dangerous")
    await browser.type("input[name='f.name']", "notes.txt")
    await browser.click("main form.stack button.approve")
    assert "/tasks/tg_" in (await browser.url())
    task = await browser.url()
    assert "awaiting approval" in await browser.text("#state")
    await browser.open(console.base + "/inbox")
    await settled(browser)
    assert str(await browser.run("return document.title")).startswith("(1) Inbox")
    await browser.press("?")
    await browser.until("document.getElementById('keys').open")
    await browser.press("?")
    await browser.press("j")
    await browser.until("document.activeElement.matches('[data-card]')")
    await browser.press("a")
    await browser.until("!document.querySelector('[data-card]')")
    await browser.open(task)
    await browser.until("/completed|failed/.test(document.getElementById('state').textContent)")
    assert "Approved by operator" in await browser.text("#life")


async def test_a_page_follows_what_happens_and_goes_on_after_a_restart_of_the_gateway(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/now")
    await settled(browser)
    await browser.run("window.kept = 'the same page'")
    await console.call("research-agent", "files__slow_report", seconds=600)
    await browser.until("document.querySelectorAll('#running li').length === 1")
    await console.gateway.restart()
    await console.call("build-agent", "files__delete_file", name="budget.txt")
    await browser.until("/delete_file/.test(document.getElementById('running').textContent)")
    await browser.until("document.title.startsWith('(1) ')")
    await browser.until("document.getElementById('connection').hidden")
    assert await browser.run("return window.kept") == "the same page"
    # While a row is in use nothing moves: a new one is announced, not put there.
    await browser.run("document.querySelector('#running a').focus()")
    await console.call("build-agent", "files__slow_report", seconds=600)
    await browser.until("document.getElementById('running-held')")
    assert await browser.run("return document.activeElement.matches('#running a')")
    await browser.submit("#running-held")
    await browser.until("!document.getElementById('running-held')")


@pytest.mark.peers("axe")
async def test_no_page_has_a_barrier_or_is_wider_than_the_screen(console: Console) -> None:
    browser = console.browser
    await console.history()
    (task, *_) = (await console.api("GET", "/api/v1/tasks?state=open"))["tasks"]
    (held, *_) = await console.api("GET", "/api/v1/approvals")
    found: list[str] = []
    for width, scheme in ((390, "light"), (1280, "dark")):
        await browser.size(width, 900)
        await browser.scheme(scheme)
        for page in (
            *PAGES,
            f"/tasks/{task['id']}",
            f"/approvals/{held['id']}",
            "/try?like=slow",
            "/grants",
            "/definitions",
        ):
            await browser.open(console.base + page)
            await settled(browser)
            found += [f"{page} {width} {scheme} {one}" for one in await barriers(console)]
            if await browser.run("return document.documentElement.scrollWidth > window.innerWidth"):
                found.append(f"{page} is wider than {width}")
    assert not found, "\n".join(found)


async def test_a_cut_login_is_told_on_the_open_page(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/tasks")
    await settled(browser)
    out = "new URLSearchParams({form_token: document.body.dataset.formToken})"
    await browser.run(f"return fetch('/logout', {{method: 'POST', body: {out}}}).then(() => 1)")
    await console.call("build-agent", "files__slow_report", seconds=600)
    await browser.until("/no longer logged in/.test(document.getElementById('connection').textContent)")
    await console.log_in()
