"""The inbox in a real browser: people approve and deny there, and hostile text stays text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.governance.approval_setup import Setup, running_setup
from tests.harness.browser import Browser, Chromium

pytestmark = pytest.mark.peers("browser")

HOSTILE = {
    "path": "</pre><script>document.title='owned'</script>",
    "image": "<img src=x onerror=\"document.title='owned'\">",
    "link": "javascript:document.title='owned'",
    "entity": "&lt;b&gt; &#x3c;script&#x3e;",
    "<script>document.title='owned'</script>": "a key",
    "turned": "invoice\u202efdp.exe",
    "blank": "a\n" * 30 + "end",
    "password": "hunter2",
}


async def log_in(setup: Setup, browser: Browser) -> None:
    link = (await setup.api("POST", "/api/login-links", {})).json()["url"]
    await browser.open(link)
    await browser.click("form button")
    assert (await browser.url()).endswith("/overview")


async def test_people_approve_and_deny_on_the_page_and_hostile_text_stays_text(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with running_setup(tmp_path) as setup, chromium.window() as browser:
        await browser.open(f"{setup.gateway.base}/")
        assert (await browser.url()).endswith("/login")
        await log_in(setup, browser)
        await browser.open(f"{setup.gateway.base}/approvals")
        assert await browser.text("#approvals .empty")

        caller = await setup.stateful()
        first = asyncio.create_task(caller.call("s__delete_it", HOSTILE))
        (row,) = await setup.open_approvals()
        await browser.open(f"{setup.gateway.base}/approvals")
        await browser.click("ol.cards a")
        shown = await browser.text("pre.arguments")
        for text in (HOSTILE["path"], "<img src=x", "javascript:", "&lt;b&gt;", "\\u202e", '"[hidden]"'):
            assert text in shown
        assert "hunter2" not in await browser.source()
        assert "password" in await browser.text("div.note:not(.warn)")
        assert not await browser.all("main script, main img, main iframe")
        assert "owned" not in str(await browser.run("return document.title"))
        await browser.click("button.approve")
        assert "pprov" in await browser.text("p.note")
        assert (await asyncio.wait_for(first, 120))["result"]["content"][0]["text"].startswith("did delete_it")
        assert setup.sent()[0]["arguments"] == HOSTILE

        second = asyncio.create_task(caller.call("s__delete_it", {**HOSTILE, "path": "/other"}))
        (row,) = await setup.open_approvals()
        await browser.open(row["url"])
        assert "/other" in await browser.text("table.diff")
        await browser.type("textarea", "Please <b>no</b>")
        await browser.click("button.deny")
        reply = await asyncio.wait_for(second, 120)
        assert "Please <b>no</b>" in reply["error"]["message"]
        assert "denied" in await browser.text("h1")
        assert len(setup.sent()) == 1


async def test_a_login_link_works_once_and_opening_links_decides_nothing(chromium: Chromium, tmp_path: Path) -> None:
    async with running_setup(tmp_path) as setup, chromium.window() as browser:
        link = (await setup.api("POST", "/api/login-links", {})).json()["url"]
        caller = await setup.stateful({"tasks": {}})
        await caller.call("s__delete_it", {}, task={"ttl": 60000})
        (row,) = await setup.open_approvals()
        await browser.open(link)
        await browser.open(link)
        await browser.click("form button")
        for word in ("approve", "deny", "decide"):
            await browser.open(f"{row['url']}/{word}")
        assert len(await setup.open_approvals()) == 1
        await browser.open(f"{setup.gateway.base}/approvals")
        await browser.submit("header .who button")
        await browser.click("#account button:not([name])")
        await browser.open(link)
        await browser.click("form button")
        assert (await browser.url()).endswith("/login")
        assert "already used" in await browser.text("p.note.bad")
