"""Servers, rules, usage, audit, scopes, waterfall and system in a real browser, at two sizes and in both schemes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.console.stage import CONFIG, Console, a_console

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser"), pytest.mark.asyncio(loop_scope="module")]
PAGES = (
    "/servers",
    "/servers/files",
    "/scopes",
    "/scopes/default",
    "/rules",
    "/usage",
    "/waterfall",
    "/audit",
    "/system",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    config = {**CONFIG, "governance": {**CONFIG["governance"], "record": {}}}
    async with a_console(tmp_path_factory.mktemp("console"), config) as made:
        for _ in range(3):
            await made.call("build-agent", "files__list_files")
        yield made


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
async def test_every_page_fits_its_screen_and_names_what_it_is(console: Console, width: int, scheme: str) -> None:
    browser = console.browser
    await browser.size(width, 900)
    await browser.scheme(scheme)
    for path in PAGES:
        await browser.open(console.base + path)
        assert await browser.run("return document.documentElement.scrollWidth") <= width, path
        assert len(await browser.all("h1")) == 1, path
        assert (
            await browser.run("return document.querySelectorAll('main form input:not([type=hidden]):not([id])').length")
            == 0
        )


async def test_rules_are_rehearsed_from_the_page(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/rules")
    text = "rules: [{match: list_files, action: deny}]"
    await browser.until("document.querySelectorAll('table.diff tbody tr').length >= 3")
    await browser.run(f"document.querySelector('#governance').value = {text!r}")
    await browser.click("form[action='/rules#rehearse'] button")
    assert "would change" in await browser.text("#found")


async def test_a_server_is_drained_and_enabled_from_its_page(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/servers/archive")
    await browser.click("form[action='/servers/archive/drain'] button")
    assert "archive is drained." in await browser.text("main .note")
    await browser.click("form[action='/servers/archive/enable'] button")
    assert "archive is enabled." in await browser.text("main .note")


async def test_the_log_is_searched_and_the_configuration_read_again(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/system")
    await browser.click("form[action='/system/reload'] button")
    assert "in force" in await browser.text("main .note")
    await browser.open(console.base + "/audit")
    await browser.type("#find-event", "configuration_reloaded")
    await browser.click("form.filter button")
    assert len(await browser.all("#rows tbody tr")) == 1
