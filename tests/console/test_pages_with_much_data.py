"""Every page and action with 200,000 rows of history, 10,000 open tasks, a million audit rows and 40 servers in a real Chromium:
`make pages-with-much-data`. At both sizes and in both colour schemes each page loads, fits the screen and has no barrier; each
action is done on a phone in the light scheme and on a desk in the dark one. With `PART=0.01` the store has that part of the rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.console import PAGES
from tests.benchmarks.growth import growing_server
from tests.console.accessibility import a_search_for_barriers
from tests.console.actions import ACTIONS, OBSERVER, action_of
from tests.console.console_setup import CONFIG, Console, a_console, settled
from tests.console.large_store import SERVERS, TOOLS_OF_SERVER, Amounts, fill_sqlite
from tests.harness.browser import Browser, Chromium
from tests.harness.gateway import running_gateway
from tests.identity.real_provider import RealProvider, real_provider

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.peers("browser"), pytest.mark.long]


async def _names(console: Console) -> dict[str, str]:
    """One item of each kind that has a page."""
    (held, *_) = await console.api("GET", "/api/v1/approvals?limit=1")
    (ended, *_) = (await console.api("GET", "/api/v1/history?kind=task&limit=1"))["rows"]
    (opened, *_) = (await console.api("GET", "/api/v1/tasks?state=open&limit=1"))["tasks"]
    return {"open": opened["id"], "ended": ended["id"], "approval": held["id"]}


RULES = [{"match": match, "action": "approve"} for match in ("get_3", "list_files", "write_file")]
TENANT, AGENT, REVIEWER = "umbrella", "tenant-agent", "tenant-reviewer"
"""People of a tenant without other calls: their own are on the first page of their inbox."""
LINK = {"mode": "url", "elicitationId": "e1", "message": "Log in first", "url": "https://accounts.example.com/login"}
PHONE, DESK = 390, 1280
PART = float(os.environ.get("PART", "1"))


def demo_server(changes: str) -> dict[str, Any]:
    """The demo server after these changes of its module."""
    code = f"from taskgate.demo.files import *; {changes}; asyncio.run(DemoServer().run())"
    return {"command": sys.executable, "args": ["-c", code]}


def token(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(f"{name}-token".encode()).hexdigest(), **more}


@asynccontextmanager
async def console_with_much_data(
    chromium: Chromium, folder: Path, more: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Console, dict[str, Any]]]:
    (folder / "state").mkdir()
    amounts = Amounts(*(round(rows * PART) for rows in Amounts()))
    await fill_sqlite(folder / "state" / "taskgate.db", amounts)
    async with growing_server(TOOLS_OF_SERVER) as url:
        servers: dict[str, Any] = {f"server-{number}": {"url": url} for number in range(SERVERS)}
        limits = {**CONFIG["limits"], "open_tasks_per_caller": 20_000, "pending_approvals_per_caller": 20_000}
        config: dict[str, Any] = {
            **CONFIG,
            "servers": servers | (more or {}),
            "scopes": {"default": {"default_servers": ["*"], "scripts": "on"}},
            "tokens": [
                *CONFIG["tokens"],
                token(AGENT, tenant=TENANT),
                token(REVIEWER, tenant=TENANT, roles=["approver"]),
            ],
            "governance": {**CONFIG["governance"], "rules": RULES},
            "tasks": {"execute_on": "demand"},
            "limits": limits,
            "pins": "enforce",
        }
        async with a_console(chromium, folder, config, listed=len(servers)) as console:
            yield console, config


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
    await opened(console, "/tasks?since=3650d")
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


async def stopping_scripts(console: Console) -> None:
    browser = console.browser
    made = json.loads(await console.call("build-agent", "run_script", code="await sleep(3_600)"))["result"]
    await opened(console, "/tasks?caller=build-agent&state=open")
    await browser.run("document.querySelector('#stop-scripts details').open = true")
    await browser.type("#stop-scripts input[name=reason]", "not needed")
    await browser.click("#stop-scripts button.deny")
    await shown(browser, "1 script stopped", "main .note")
    assert (await console.api("GET", f"/api/v1/tasks/{made['taskId']}"))["state"] == "cancelled"


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


async def rules_and_reload(console: Console, config: dict[str, Any], number: int) -> None:
    """Rehearse rules; reload the configuration with a server whose definition has changed, and accept the definition."""
    browser = console.browser
    await console.call("build-agent", "server-5__get_5", text="for the rehearsal")
    await opened(console, "/rules")
    await browser.run("document.querySelector('#governance').value = 'rules: [{match: get_5, action: deny}]'")
    await browser.click("form[action='/rules#rehearse'] button")
    await shown(browser, "would change", "#found")
    await browser.run("document.querySelector('#governance').value = 'rules: ['")
    await browser.click("form[action='/rules#rehearse'] button")
    await shown(browser, "not valid YAML", "main .note.bad")
    text = f"List the files, change {number}."
    changed = demo_server(f"TOOLS[0]['description'] = {text!r}")
    console.gateway.write({**config, "servers": {**config["servers"], "archive": changed}})
    await opened(console, "/system")
    await browser.click("form[action='/system/reload'] button")
    await shown(browser, "reloaded", "main .note")
    await opened(console, "/definitions")
    # A call makes the gateway request the lists of the server.
    await console.call("build-agent", "archive__read_file", name="notes.txt")
    await shown(browser, re.escape(text), "section.definition")
    await browser.click("form[action='/definitions/accept'] button.approve")
    await shown(browser, "No changed definitions")
    assert await console.api("GET", "/api/v1/pins") == []
    await opened(console, "/tool?server=archive&tool=list_files")
    await shown(browser, re.escape(text))


async def held_by(console: Console, tool: str, **arguments: Any) -> str:
    """The id of the approval that a call of the agent waits for."""
    made = json.loads(await console.call(AGENT, tool, **arguments))["result"]
    return str((await console.api("GET", f"/api/v1/tasks/{made['taskId']}"))["approval_id"])


async def grants_and_equal_calls(console: Console, number: int) -> None:
    """Approve with a grant and revoke it; decide equal calls together, as a person of the tenant who logs in with a token."""
    browser = console.browser
    approval = await held_by(console, "files__write_file", name=f"{number}.txt", text="b")
    await opened(console, f"/approvals/{approval}")
    await browser.run("document.getElementById('grant').value = 'exact'")
    await browser.click(f"form[action='/approvals/{approval}/approve'] button.approve")
    (grant,) = await console.api("GET", "/api/v1/grants")
    await opened(console, "/grants")
    await browser.click(f"form[action='/grants/{grant['id']}/revoke'] button")
    await shown(browser, "No ")
    assert await console.api("GET", "/api/v1/grants") == []
    equal = [await held_by(console, "files__list_files", key=f"{number} {place}") for place in range(3)]
    await log_out(console)
    await console.log_in_with(f"{REVIEWER}-token")
    await opened(console, "/inbox")
    await shown(browser, "3 identical calls", "[data-card] h2")
    await browser.click("form[action='/inbox/together'] button[value=deny]")
    for one in equal:
        assert (await console.api("GET", f"/api/v1/approvals/{one}"))["state"] == "denied"
    await log_out(console)
    await console.log_in()


async def log_out(console: Console) -> None:
    await opened(console, "/inbox")
    await console.browser.submit("header .who button")
    await console.browser.click("#account button:not([name])")
    await console.browser.until("location.pathname === '/login'")


async def questions(console: Console, number: int) -> None:
    """Answer the question of a server in the inbox, and confirm a link that a server sends."""
    browser = console.browser
    await console.api("POST", "/api/v1/tools/call", {"tool": "files__greet", "arguments": {}})
    (asked,) = await console.api("GET", "/api/v1/questions")
    form = f"form[action='/inbox/questions/{asked['request_id']}']"
    await opened(console, "/inbox")
    await browser.until(f"document.querySelector({form!r})")
    await browser.type(f"{form} input[type=text], {form} input:not([type])", "Ann")
    await browser.click(f"{form} button[value=accept]")
    await shown(browser, "Answer sent", "main .note")
    await console.api("POST", "/api/v1/tools/call", {"tool": "linking__greet", "arguments": {}})
    (asked,) = await console.api("GET", "/api/v1/questions")
    await opened(console, f"/elicitations/{asked['request_id']}")
    await shown(browser, "accounts.example.com")
    await browser.click(f"form[action='/elicitations/{asked['request_id']}/{('answer', 'decline')[number]}'] button")
    await shown(browser, "Answer sent")
    assert await console.api("GET", "/api/v1/questions") == []


async def at_the_provider(browser: Browser, provider: RealProvider, name: str) -> None:
    """Log in and agree, until the browser is back at the gateway."""
    await browser.until(f"location.href.startsWith({provider.url!r}) && document.querySelector('button[type=submit]')")
    while (await browser.url()).startswith(provider.url):
        if await browser.all("input[name=login]"):
            await browser.type("input[name=login]", name)
            await browser.type("input[name=password]", "any")
        await browser.click("button[type=submit]")


async def accounts(console: Console, provider: RealProvider) -> None:
    """Connect the shared account of a server from its page, and the account of a caller as that caller."""
    browser = console.browser
    await opened(console, "/servers/notes")
    await browser.submit("form[action='/servers/notes/connect'] button")
    await at_the_provider(browser, provider, "lister")
    await shown(browser, "shared account at notes is connected")
    page = (await console.api("POST", "/api/v1/servers/notes/accounts", {"principal": f"{TENANT}/{AGENT}"}))["url"]
    await log_out(console)
    await console.log_in_with(f"{AGENT}-token")
    await browser.open(page)
    await browser.submit("main form button")
    await at_the_provider(browser, provider, "agent-at-the-provider")
    await shown(browser, "Your account at notes is connected")
    await console.log_in()


@pytest.mark.peers("oidc")
async def test_every_action_works_with_much_data(chromium: Chromium, tmp_path: Path) -> None:
    demo, linking = (
        demo_server("pass"),
        demo_server(f"DemoServer._greet = lambda self: self._ask('elicitation/create', {LINK})"),
    )
    async with real_provider(accessTokenTtl=600) as provider:
        behind = {"servers": {"demo": demo}, "auth": {"jwt": [{"issuer": provider.url}]}}
        async with running_gateway(behind, tmp_path / "notes") as notes:
            auth = {"type": "authorization_code", "per_user": True}
            more = {"files": demo, "archive": demo, "linking": linking, "notes": {"url": notes.url, "auth": auth}}
            async with (
                console_with_much_data(chromium, tmp_path, more) as (console, config),
                console.browser.pages_begin_with(OBSERVER),
            ):
                await console.log_in()
                for number, (width, scheme) in enumerate(((PHONE, "light"), (DESK, "dark"))):
                    await console.browser.size(width, 900)
                    await console.browser.scheme(scheme)
                    await console.browser.run("localStorage.removeItem('sent')")
                    await filters_and_columns(console)
                    print(f"{width}: filters", flush=True)
                    await cancelling_and_running_again(console)
                    await stopping_scripts(console)
                    print(f"{width}: cancelled and run again, scripts stopped", flush=True)
                    await decisions(console, number)
                    print(f"{width}: decided and taken back", flush=True)
                    await finding_and_operating(console, width)
                    print(f"{width}: found and operated", flush=True)
                    await rules_and_reload(console, config, number)
                    print(f"{width}: rules rehearsed, configuration reloaded, definition accepted", flush=True)
                    await grants_and_equal_calls(console, number)
                    print(f"{width}: granted and revoked, equal calls decided together", flush=True)
                    await questions(console, number)
                    print(f"{width}: questions answered", flush=True)
                    await accounts(console, provider)
                    print(f"{width}: accounts connected", flush=True)
                    sent = json.loads(await console.browser.run("return localStorage.getItem('sent')"))
                    assert {action_of(path) for path in sent} == set(ACTIONS)


@pytest.mark.peers("axe")
async def test_every_page_is_accessible_and_fits_the_screen_with_much_data(chromium: Chromium, tmp_path: Path) -> None:
    found: list[str] = []
    async with (
        console_with_much_data(chromium, tmp_path) as (console, _config),
        a_search_for_barriers(console.browser) as barriers,
    ):
        names = await _names(console)
        for page in PAGES:
            await opened(console, page.format(**names))
            seen = [f"{page} {one}" for one in await barriers.on_this_page()]
            print(f"{page}: {len(seen)} barriers", flush=True)
            found += seen
    assert not found, "\n".join(found)
