"""The three questions of docs/how-to/find-out-what-happened.md, answered in a real browser along the steps that it describes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.console import team_day
from tests.console.console_setup import Console, a_console, settled
from tests.harness.browser import Chromium

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser")]
in_module_loop = pytest.mark.asyncio(loop_scope="module")
DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "find-out-what-happened.md"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "state").mkdir()
    await team_day.fill(folder / "state" / "taskgate.db", hours=12)
    async with a_console(chromium, folder) as made:
        await made.browser.size(1280, 900)
        yield made


def test_each_question_of_the_document_has_a_test() -> None:
    questions = re.findall(r"^## (.*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert questions == [
        "Who deleted this file?",
        "Why is it slow since noon?",
        "What needs my approval, on my phone?",
    ]


@in_module_loop
async def test_the_caller_of_a_destructive_call_is_found(console: Console) -> None:
    browser = console.browser
    await console.call("build-agent", "files__delete_file", name="notes.txt")
    (held,) = await console.api("GET", "/api/v1/approvals")
    body = {"arguments_digest": held["arguments_digest"]}
    await console.api("POST", f"/api/v1/approvals/{held['id']}/approve", body)
    async with asyncio.timeout(60):
        while not (await console.api("GET", "/api/v1/history?tool=delete_file"))["rows"]:
            await asyncio.sleep(0.1)
    await browser.open(console.base + "/overview")
    await settled(browser)
    await browser.press("/")
    await browser.press("delete")
    await browser.until("/delete_file/.test(document.getElementById('results').textContent)")
    await browser.press("\ue007")
    await browser.until("location.pathname === '/tool' && document.readyState === 'complete'")
    await browser.click(f"a[href='/tasks/{held['task_id']}']")
    page = await browser.text("main")
    assert "build-agent" in page
    assert "Approved by operator" in page
    assert "notes.txt" in page
    await browser.click("a[href^='/audit?text=']")
    assert held["task_id"] in await browser.source()


@in_module_loop
async def test_the_cause_of_slow_calls_is_found(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/overview?range=day")
    assert await browser.all("#charts figure")
    await browser.open(console.base + "/tools?range=hour")
    await browser.click("thead a[href*='sort=-p99']")
    await browser.until("location.search.includes('sort=-p99') && document.readyState === 'complete'")
    slowest = await browser.run("return document.querySelector('tbody th').textContent")
    assert team_day.SLOW_SERVER in str(slowest)
    await browser.run("document.querySelector('tbody th a').click()")
    await browser.until("location.pathname === '/tool' && document.readyState === 'complete'")
    text = await browser.text("main")
    assert "Used by" in text
    assert "Latency, distribution" in text


@in_module_loop
async def test_pending_approvals_are_decided_on_a_phone(console: Console) -> None:
    browser = console.browser
    await console.empty_inbox()
    await console.call("research-agent", "archive__write_file", name="summary.txt", text="Three findings.")
    await browser.size(390, 844)
    await browser.open(console.base + "/overview")
    await settled(browser)
    await browser.until("/write_file/.test(document.getElementById('attention').textContent)")
    await browser.click("#headline a[href='/inbox']")
    card = await browser.text("[data-card]")
    assert "Three findings." in card
    assert not await browser.run("return document.querySelector('.keys').checkVisibility()"), "no keyboard hints"
    height = await browser.run("return document.querySelector('[data-card] .approve').getBoundingClientRect().height")
    assert height >= 40, "large enough for a thumb"
    await browser.click("[data-card] .approve")
    assert await console.api("GET", "/api/v1/approvals") == []
    await browser.size(1280, 900)
