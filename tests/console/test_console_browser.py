"""The console in a real Chromium: a first visit, the inbox by keys alone, every page at both sizes in both schemes without a
barrier, and pages that live on through restarts, upgrades, cut streams and lost roles.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.console.accessibility import a_search_for_barriers
from tests.console.console_setup import CONFIG, PAGES, Console, a_console, settled
from tests.harness.browser import Chromium

import taskgate

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    async with a_console(chromium, tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.mark.peers("axe")
async def test_a_first_visit_is_guided_and_accessible(console: Console) -> None:
    assert (await console.browser.url()).endswith("/overview")
    assert "A fast call" in await console.browser.text("#tour")
    async with a_search_for_barriers(console.browser) as barriers:
        found = [f"first visit {one}" for one in await barriers.on_this_page()]
        for page in ("/inbox", "/usage", "/waterfall", "/login"):
            await console.browser.open(console.base + page)
            found += [f"empty {page} {one}" for one in await barriers.on_this_page()]
    assert not found, "\n".join(found)


async def test_the_tour_makes_a_fast_a_slow_and_a_dangerous_call(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/overview")
    await browser.click("#tour a[href*='like=fast']")
    await browser.click("main form.stack button.approve")
    # Its answer, or on a machine that is busy just now the task that it became.
    await browser.until("/readme.txt/.test(document.querySelector('main').textContent)")
    await browser.open(console.base + "/try?like=slow")
    await browser.run("document.querySelector(\"input[name='f.seconds']\").value = '600'")
    await browser.click("main form.stack button.approve")
    assert "running" in await browser.text("#state")
    await browser.type("#reason", "seen enough")
    await browser.click("#cancel button.deny")
    assert "cancelled" in await browser.text("#state")
    assert "seen enough" in await browser.text("main")
    await browser.open(console.base + "/try?like=dangerous")
    await browser.type("input[name='f.name']", "notes.txt")
    await browser.click("main form.stack button.approve")
    assert "/tasks/tg_" in (await browser.url())
    assert "awaiting approval" in await browser.text("#state")


async def test_the_inbox_can_be_used_by_keyboard(console: Console) -> None:
    """Approved, denied, opened and answered without a mouse."""
    browser = console.browser
    await console.empty_inbox()
    for name in ("notes.txt", "old.log"):
        await console.call("build-agent", "files__delete_file", name=name)
    await browser.open(console.base + "/inbox")
    await settled(browser)
    await browser.until("document.querySelectorAll('[data-card]').length === 2")
    assert str(await browser.run("return document.title")).startswith("(2) Inbox")
    await browser.press("?")
    await browser.until("document.getElementById('keys').open")
    await browser.press("?")
    await browser.until("!document.getElementById('keys').open")
    await browser.press("jjk")
    await browser.until("document.activeElement === document.querySelectorAll('[data-card]')[0]")
    await browser.press("a")
    await browser.until("document.querySelectorAll('[data-card]').length === 1")
    await browser.press("j")
    await browser.press("o")
    await browser.until("location.pathname.startsWith('/approvals/')")
    await browser.open(console.base + "/inbox")
    await settled(browser)
    await browser.press("j")
    await browser.press("d")
    await browser.until("!document.querySelector('[data-card]')")
    states: list[str] = []
    async with asyncio.timeout(60):
        while not states or {"queued", "approved", "running"} & set(states):  # the approved call has its own time
            tasks = (await console.api("GET", "/api/v1/tasks?tool=delete_file&caller=build-agent"))["tasks"]
            states = sorted(task["state"] for task in tasks)
    assert states == ["completed", "rejected"]
    approved = next(task for task in tasks if task["state"] == "completed")
    await browser.open(f"{console.base}/tasks/{approved['id']}")
    assert "Approved by operator" in await browser.text("#timeline")
    await console.api("POST", "/api/v1/tools/call", {"tool": "files__greet", "arguments": {}})
    await browser.open(console.base + "/inbox")
    await settled(browser)
    await browser.until("document.querySelector('[data-card]')")
    await browser.press("j")
    await browser.press("a")
    await browser.press("Ann")
    await browser.until("document.activeElement.value === 'Ann'")
    await browser.press("\ue007")
    await browser.until("/Answer sent/.test(document.querySelector('main .note')?.textContent)")
    (greeting, *_) = (await console.api("GET", "/api/v1/tasks?tool=greet"))["tasks"]
    await browser.open(f"{console.base}/tasks/{greeting['id']}")
    await browser.until("/Ann/.test(document.getElementById('result').textContent)")


async def test_equal_harmless_calls_are_decided_with_one_click(console: Console) -> None:
    browser = console.browser
    await console.empty_inbox()
    async with console.configured(governance={"rules": [{"match": "list_*", "action": "approve"}]}):
        keys = (f"call {number}" for number in itertools.count())
        while len(await console.api("GET", "/api/v1/approvals")) < 3:
            await console.call("build-agent", "files__list_files", key=next(keys))
        await browser.open(console.base + "/inbox")
        assert "3 identical calls" in await browser.text("[data-card] h2")
        await browser.click("[data-card] button[value=approve]")
        assert await console.api("GET", "/api/v1/approvals") == []


async def test_a_page_updates_itself_also_after_a_restart_of_the_gateway(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/overview")
    await settled(browser)
    await browser.run("window.kept = 'the same page'")
    await console.call("research-agent", "files__slow_report", seconds=600)
    await browser.until("/slow_report/.test(document.getElementById('running').textContent)")
    await console.gateway.restart()
    await console.call("build-agent", "files__delete_file", name="budget.txt")
    await browser.until("/delete_file/.test(document.getElementById('running').textContent)")
    await browser.until("/^.[0-9]+. Overview/.test(document.title)")
    await browser.until("document.getElementById('connection').hidden")
    assert await browser.run("return window.kept") == "the same page"
    # While a row is in use nothing moves: a new one is announced, not put there.
    await browser.run("document.querySelector('#running a').focus()")
    await console.call("build-agent", "files__slow_report", seconds=600)
    await browser.until("document.getElementById('running-pending')")
    assert await browser.run("return document.activeElement.matches('#running a')")
    await browser.submit("#running-pending")
    await browser.until("!document.getElementById('running-pending')")


@pytest.mark.peers("axe")
async def test_the_accessibility_check_detects_faults_by_size_and_colour_scheme(console: Console) -> None:
    page = console.base + "/tasks/gone"
    grey = "@media (min-width: 1000px) and (prefers-color-scheme: dark) { h1 { color: #444 } }"
    wide = "@media (max-width: 400px) { h1 { min-width: 500px } }"
    style = f"const s = new CSSStyleSheet(); s.replaceSync({grey + wide!r}); document.adoptedStyleSheets = [s]"
    async with a_search_for_barriers(console.browser) as barriers:
        await console.browser.open(page)
        assert await barriers.on_this_page() == []
        await console.browser.run(style)
        first = await barriers.on_this_page()
        assert [one.split(":")[0] for one in first] == ["390", "1280 dark color-contrast"]
        assert await barriers.on_this_page() == first, "what was found once is found again"


@pytest.mark.peers("axe")
async def test_every_page_is_accessible_and_fits_the_screen(console: Console) -> None:
    browser = console.browser
    await console.history()
    (task, *_) = (await console.api("GET", "/api/v1/tasks?state=open"))["tasks"]
    (held, *_) = await console.api("GET", "/api/v1/approvals")
    found: list[str] = []
    async with a_search_for_barriers(browser) as barriers:
        for page in (*PAGES, f"/tasks/{task['id']}", f"/approvals/{held['id']}", "/tasks/gone"):
            await browser.open(console.base + page)
            await settled(browser)
            found += [f"{page} {one}" for one in await barriers.on_this_page()]
    assert not found, "\n".join(found)


async def test_a_page_without_a_stream_polls(console: Console) -> None:
    browser = console.browser
    await browser.refuse("*/api/v1/events*")
    try:
        await browser.open(console.base + "/tasks?tool=write_file&state=open")
        await browser.until("document.body.dataset.live === 'no'")
        rows = "document.querySelectorAll('#tasks tr').length"
        before = await browser.run(f"return {rows}")
        await console.call("research-agent", "files__write_file", name="new.txt", text="x")
        await browser.until(f"{rows} === {before + 1}")
    finally:
        await browser.refuse()


async def test_a_page_of_an_older_version_reloads_unless_a_form_has_input(console: Console, tmp_path: Path) -> None:
    browser, gateway = console.browser, console.gateway
    older = tmp_path / "older"
    # With the compiled modules, which are valid for copies of the same age.
    shutil.copytree(Path(taskgate.__file__).parent, older / "taskgate")
    script = older / "taskgate" / "dashboard" / "static" / "console.js"
    script.write_text(script.read_text() + "window.older = true;\n")

    async def with_code_of(path: str) -> None:
        gateway.env["PYTHONPATH"] = path
        await gateway.kill()
        await gateway.start()

    newer = gateway.env.get("PYTHONPATH", str(Path(taskgate.__file__).parents[1]))
    # The page of the test before would notice, too, and a browser loads pages again by itself once a minute only.
    await browser.open("about:blank")
    await with_code_of(str(older))
    await browser.open(console.base + "/tasks")
    await browser.until("window.older && document.body.dataset.live === 'yes'")
    await browser.run("document.getElementById('text').value = 'half a wo'")
    await with_code_of(newer)
    await browser.until("/upgraded/.test(document.getElementById('connection').textContent)")
    assert await browser.run("return window.older && document.getElementById('text').value") == "half a wo"
    await browser.click("#connection a")
    assert not await browser.run("return window.older")
    await with_code_of(str(older))
    await browser.until("window.older && document.body.dataset.live === 'yes'")
    await browser.until("document.getElementById('connection').hidden")
    await with_code_of(newer)


async def test_an_open_page_reports_that_a_role_has_ended(console: Console) -> None:
    browser = console.browser
    await browser.run("sessionStorage.clear()")
    await console.log_in_with("reviewer-token")
    await browser.open(console.base + "/servers")
    await settled(browser)
    plain = [{key: token[key] for key in ("id", "sha256")} for token in CONFIG["tokens"]]
    async with console.configured(tokens=plain):
        await console.call("build-agent", "files__delete_file", name="budget.txt")
        await browser.until("document.querySelector('#connection a[href^=\"/login\"]')")


async def test_an_open_page_reports_that_the_login_has_ended(console: Console) -> None:
    browser = console.browser
    await console.log_in()
    await browser.open(console.base + "/tasks")
    await settled(browser)
    out = "new URLSearchParams({form_token: document.body.dataset.formToken})"
    await browser.run(f"return fetch('/logout', {{method: 'POST', body: {out}}}).then(() => 1)")
    await console.call("build-agent", "files__slow_report", seconds=600)
    await browser.until("document.querySelector('#connection a[href^=\"/login\"]')")
