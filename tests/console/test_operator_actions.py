"""Servers, rules, scopes, waterfall, audit, system, grants and tasks, managed on their pages in a real browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.console.accessibility import a_search_for_barriers
from tests.console.console_setup import CONFIG, Console, a_console, settled
from tests.harness.browser import Chromium
from tests.harness.narrow import present

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    async with a_console(chromium, tmp_path_factory.mktemp("console")) as made:
        await made.browser.size(1280, 900)
        for _ in range(3):
            await made.call("build-agent", "files__list_files")
        yield made


@pytest.mark.peers("axe")
async def test_rules_are_rehearsed_from_the_page(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/rules")
    text = "rules: [{match: list_files, action: deny}]"
    await browser.until("document.querySelectorAll('table.plain tbody tr').length >= 3")
    await browser.run(f"document.querySelector('#governance').value = {text!r}")
    await browser.click("form[action='/rules#rehearse'] button")
    assert "would change" in await browser.text("#found")
    async with a_search_for_barriers(browser) as barriers:
        assert await barriers.on_this_page() == []
    await browser.run("document.querySelector('#governance').value = 'rules: ['")
    await browser.click("form[action='/rules#rehearse'] button")
    assert "not valid YAML" in await browser.text("main .note.bad")


async def test_a_server_is_reconnected_drained_and_enabled_from_its_page(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/servers")
    await browser.click("a[href='/servers/archive']")
    for action, text in (("reconnect", "reconnected"), ("drain", "drained"), ("enable", "enabled")):
        await browser.click(f"form[action='/servers/archive/{action}'] button")
        assert f"archive is {text}." in await browser.text("main .note")


async def test_palette_opens_a_page_by_keyboard(console: Console) -> None:
    """`/` and Ctrl-K focus the field; arrow keys choose, and the chosen option is announced; Enter opens it."""
    browser = console.browser
    await browser.open(console.base + "/audit")
    await settled(browser)
    await browser.press("/")
    await browser.until("document.activeElement.id === 'find'")
    await browser.press("archiv")
    await browser.until("/archive/.test(document.getElementById('results').textContent)")
    chosen = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    await browser.until(f"{chosen}?.dataset.address === '/servers/archive'")
    assert await browser.run(f"return {chosen}.getAttribute('aria-selected')") == "true"
    assert "result" in await browser.run("return document.getElementById('found-count').textContent")
    await browser.press("\ue007")
    await browser.until("location.pathname === '/servers/archive'")
    await settled(browser)
    await browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, bubbles: true}))")
    await browser.until("document.activeElement.id === 'find' && !document.getElementById('results').hidden")
    first = await browser.run(f"return {chosen}.dataset.address")
    await browser.press("\ue015")
    assert await browser.run(f"return {chosen}.dataset.address") != first
    await browser.press("\ue00c")
    await browser.until("document.getElementById('results').hidden")


async def test_header_is_low_and_its_menu_opens_on_a_phone(console: Console) -> None:
    browser = console.browser
    for width in (390, 1280):
        await browser.size(width, 844)
        await browser.open(console.base + "/servers")
        assert await browser.run("return document.querySelector('header').getBoundingClientRect().height") <= 56
    await browser.size(390, 844)
    assert not await browser.run("return document.getElementById('menu').checkVisibility()")
    await browser.submit(".menu-button")
    await browser.until("document.getElementById('menu').checkVisibility()")
    await browser.click("#menu a[href='/tasks']")
    assert (await browser.url()).endswith("/tasks")
    await browser.size(1280, 900)


LONG_NAME = "synchronise_customer_invoices_of_all_subsidiaries_with_the_accounting_warehouse_and_notify_the_team"
# Returns what the page does not fit, and the widths of the columns of names: a column of a few letters is unreadable.
MEASURE = f"""
const names = [...document.querySelectorAll('tbody th, tbody td, .cards .tool, .lines .tool')].filter(
  one => one.checkVisibility() && one.querySelector('a') && !one.querySelector('button, summary'));
for (const one of names) one.querySelector('a').textContent = '{LONG_NAME}';
const widths = names.map(one => one.getBoundingClientRect().width);
const wide = document.documentElement.scrollWidth > window.innerWidth;
return [names.length, Math.round(Math.min(...widths)), wide];
"""


async def test_lists_with_long_names_fit_a_phone_and_their_columns_stay_readable(console: Console) -> None:
    browser = console.browser
    async with asyncio.timeout(60):
        while not await console.api("GET", "/api/v1/usage"):
            await asyncio.sleep(0.2)
    await browser.size(390, 844)
    for path in ("/usage", "/tasks", "/tools", "/callers", "/servers", "/caller?name=build-agent"):
        await browser.open(console.base + path)
        await settled(browser)
        found, narrowest, too_wide = await browser.run(MEASURE)
        assert found, path
        assert (narrowest >= 100, too_wide) == (True, False), (path, narrowest)
    await browser.size(1280, 900)


async def test_the_log_is_searched_and_the_configuration_read_again(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/system")
    await browser.click("form[action='/system/reload'] button")
    assert "reloaded" in await browser.text("main .note")
    await browser.open(console.base + "/audit")
    await browser.type("#find-event", "configuration_reloaded")
    await browser.click("form.filter button")
    assert len(await browser.all("#rows tbody tr:not(.whole)")) == 1
    for kind in ("", "?format=cef"):
        script = f"return fetch('/api/v1/audit/export{kind}').then(r => r.text())"
        assert "configuration_reloaded" in await browser.run(script)


async def test_a_scope_is_tried_as_a_caller_and_usage_is_shown_by_tenant_and_as_csv(console: Console) -> None:
    browser = console.browser
    await browser.open(console.base + "/scopes")
    await browser.click("a[href='/scopes/default']")
    await browser.click("#try")
    assert "scope=default" in await browser.url()
    await browser.open(console.base + "/scopes/default")
    await browser.click("a[href$='tool=files__list_files']")
    await browser.click("main form.stack button.approve")
    await browser.until("/readme.txt/.test(document.querySelector('main').textContent)")
    await browser.open(console.base + "/usage")
    await browser.click("a[href*='by=tenant']")
    assert "by tenant" in await browser.text("main > p.dim")
    csv = "return fetch(document.querySelector('a[href*=csv]').href).then(r => r.text())"
    assert str(await browser.run(csv)).startswith('"day","principal","tenant","server","tool","calls"')


async def test_tasks_are_found_and_a_part_of_the_waterfall_is_chosen_by_dragging(console: Console) -> None:
    browser = console.browser
    await console.call("research-agent", "archive__slow_report", seconds=600)
    await console.call("build-agent", "files__slow_report", seconds=600)
    await browser.open(console.base + "/tasks")
    await browser.type("#server", "archive")
    await browser.click("form.filter button")
    assert "research-agent" in await browser.text("#tasks")
    assert "build-agent" not in await browser.text("#tasks")
    await browser.open(console.base + "/waterfall")
    rows = "document.querySelectorAll('.drawing rect').length"
    before = await browser.run(f"return {rows}")
    # The right half of the axis, up to its end: the running reports reach it however young they are, the first calls never do.
    await browser.drag(".ticks", (0.999, 0.5), (0.5, 0.5))
    await browser.until("/from=/.test(location.search) && document.readyState === 'complete'")
    assert 0 < await browser.run(f"return {rows}") < before
    assert await browser.all(".drawing a[href^='/tasks/tg_']")
    await console.call("build-agent", "files__list_files")
    await browser.click("#reset-zoom")
    await browser.click(".spans li:nth-last-child(2) a.what")
    assert "trace=" in await browser.url()
    assert await browser.run(f"return {rows}") == 2


async def test_an_approval_is_given_as_a_grant_and_the_grant_is_revoked(console: Console) -> None:
    browser = console.browser
    await console.call("build-agent", "archive__write_file", name="a.txt", text="b")
    (held,) = await console.api("GET", "/api/v1/approvals")
    await browser.open(f"{console.base}/approvals/{held['id']}")
    if await browser.all("#grant"):
        await browser.run("document.getElementById('grant').value = 'exact'")
    await browser.click("button[value=approve]")
    assert "approved" in await browser.text("h1 .state") or "used" in await browser.text("h1 .state")
    await browser.open(console.base + "/grants")
    await browser.click("form[action$='/revoke'] button")
    assert await console.api("GET", "/api/v1/grants") == []
    await browser.open(f"{console.base}/approvals/{held['id']}")
    assert not await browser.all("button[value=approve]")


async def test_a_changed_definition_is_hidden_until_it_is_accepted_on_its_page(console: Console) -> None:
    browser = console.browser
    other = "from taskgate.demo.files import *; TOOLS[0]['description'] = 'List all files, and say <b>nothing</b>.'"
    changed = {"command": sys.executable, "args": ["-c", f"{other}; asyncio.run(DemoServer().run())"]}
    async with console.configured(pins="enforce", servers={**CONFIG["servers"], "archive": changed}):
        await browser.open(console.base + "/definitions")
        await settled(browser)
        async with asyncio.timeout(120):
            # Using the server makes the gateway request its lists.
            while not await console.api("GET", "/api/v1/pins"):
                await console.call("build-agent", "archive__read_file", name="notes.txt")
        await browser.until("document.querySelector('section.definition')")
        shown = " ".join((await browser.text("section.definition h2")).split())
        assert "list_files tool on archive hidden until accepted" in shown
        assert "List all files, and say <b>nothing</b>." in await browser.text("table.diff tr:last-child td:last-child")
        refused = json.loads(await console.call("build-agent", "archive__list_files"))
        assert refused["error"]["data"]["error_type"] == "unknown_tool"
        await browser.click("form[action='/definitions/accept'] button.approve")
        assert "No changed definitions" in await browser.text("main")
        assert "readme.txt" in await console.call("build-agent", "archive__list_files")
        (row,) = (await console.api("GET", "/api/v1/audit?event=tool_accepted"))["rows"]
        assert (row["server"], row["name"], row["approvers"]) == ("archive", "list_files", ["operator"])


async def test_the_gateway_on_standard_streams_has_the_same_console(console: Console, tmp_path: Path) -> None:
    """A client starts `taskgate stdio --alone`; its dangerous call is approved in a browser, and the client has the answer."""
    (tmp_path / "state").mkdir()
    rules = {"rules": [{"match": "delete_*", "action": "approve"}]}
    servers = {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}}
    (tmp_path / "taskgate.yaml").write_text(json.dumps({"servers": servers, "governance": rules}))
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "taskgate", "stdio", "-c", str(tmp_path / "taskgate.yaml"), "--alone"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TASKGATE_STATE_DIR": str(tmp_path / "state")},
    )
    received, messages = present(program.stdin), present(program.stdout)
    assert program.stderr is not None

    def send(**message: Any) -> None:
        received.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def answer(number: int) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(await messages.readline())
            if message.get("id") == number and "method" not in message:
                return message

    try:
        async with asyncio.timeout(120):
            base = None
            while base is None:
                base = re.search(rb"http://[0-9.:]+", await program.stderr.readline())
            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            send(id=1, method="initialize", params=about)
            await answer(1)
            send(method="notifications/initialized")
            send(id=2, method="tools/call", params={"name": "files__delete_file", "arguments": {"name": "old.log"}})
            token = next((tmp_path / "state").rglob("operator-token")).read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            reply = await console.http.post(base[0].decode() + "/api/login-links", json={}, headers=headers)
            browser = console.browser
            await browser.open(reply.json()["url"])
            await browser.click("form button")
            await browser.open(base[0].decode() + "/inbox")
            await browser.until("document.querySelector('[data-card]')")
            await browser.click("[data-card] button.approve")
            await browser.open("about:blank")
            assert "Deleted old.log" in json.dumps(await answer(2))
    finally:
        received.close()
        await program.communicate()


async def test_a_form_remembers_the_last_arguments_of_its_tool_in_this_tab(console: Console) -> None:
    browser = console.browser
    # The browser may have a session of another gateway on this host: cookies are shared by all ports.
    await console.log_in()
    page, value = "/try?scope=default&tool=files__{}", "document.querySelector(\"input[name='f.name']\").value"
    await browser.open(console.base + page.format("read_file"))
    await browser.type("input[name='f.name']", "readme.txt")
    await browser.click("main form.stack button.approve")
    await browser.until("/Welcome/.test(document.querySelector('main').textContent)")
    await browser.open(console.base + page.format("read_file"))
    await browser.until(f"{value} === 'readme.txt'")
    await browser.open(console.base + page.format("delete_file"))
    await settled(browser)
    assert await browser.run(f"return {value}") == "", "arguments of another tool"
    await browser.run("sessionStorage.clear()")
    await browser.open(console.base + page.format("read_file"))
    await settled(browser)
    assert await browser.run(f"return {value}") == "", "kept for this tab only"
