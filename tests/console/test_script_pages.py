"""Pages of scripts in a real browser: the plan of one that waits for approval, its calls, and the report of one that failed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.console.accessibility import SCHEMES, SIZES, a_search_for_barriers
from tests.console.console_setup import CONFIG, Console, a_console, settled
from tests.harness.browser import Chromium

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser"), pytest.mark.asyncio(loop_scope="module")]

SCRIPTED: dict[str, Any] = {
    **CONFIG,
    "scopes": {"default": {"default_servers": ["*"], "scripts": "on"}},
    "governance": {
        "rules": [
            {"match": "taskgate:run_script", "action": "approve"},
            {"match": "delete_*", "action": "deny"},
            {"match": "write_*", "action": "approve"},
        ]
    },
}
HOSTILE = f"""# </ol></div><script>document.title = "hostile"</script><b id=hostile>
note = "\u202e\u2066 \u05d0\u05d1 = \u05d2" + "{"x" * 600}"
if True:
\tfor n in range(3):
\t\tawait files.list_files()
name = "files__read_" + "file"
await call_tool(name, name="notes.txt")
await files.write_file(name="a", text=note)
await files.delete_file(name="budget.txt")
"""
FAILS = """found = await files.list_files()
await archive.read_file(name="notes.txt")
try:
    await files.delete_file(name="budget.txt")
except Exception as e:
    print(tool_error(e).type)
raise ValueError("<b id=hostile>" + "y" * 300)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    async with a_console(chromium, tmp_path_factory.mktemp("console"), SCRIPTED) as made:
        yield made


async def begun(console: Console, code: str) -> dict[str, Any]:
    """Start a script that waits for approval; its approval."""
    known = {row["id"] for row in await console.api("GET", "/api/v1/approvals?all=1")}
    await console.call("build-agent", "run_script", code=code)
    [held] = [row for row in await console.api("GET", "/api/v1/approvals?all=1") if row["id"] not in known]
    return dict(held)


async def until_state(console: Console, task: str, *states: str) -> None:
    """Wait for a state of the task that is in its page, which updates itself."""
    wanted = " || ".join(f"document.getElementById('state').classList.contains({state!r})" for state in states)
    await console.browser.open(f"{console.base}/tasks/{task}")
    await console.browser.until(wanted)


async def check_pages(console: Console, *pages: str) -> None:
    """No page has a barrier, is wider than the screen, or contains markup of the script."""
    browser, found = console.browser, list[str]()
    async with a_search_for_barriers(browser) as barriers:
        for page in pages:
            await browser.open(console.base + page)
            await settled(browser)
            found += [f"{page} {one}" for one in await barriers.on_this_page()]
            assert await browser.run("return document.getElementById('hostile')") is None
            assert await browser.run("return document.title") != "hostile"
            await pictured(console, page)
    assert not found, "\n".join(found)


async def pictured(console: Console, page: str) -> None:
    """Screenshots of the pages, if a folder for them is named."""
    folder = os.environ.get("TASKGATE_TEST_PICTURES")
    if not folder:
        return
    name = "-".join(part for part in page.split("/") if part and not part.startswith(("tg_", "ap_"))) + page[-4:]
    for width in SIZES:
        for scheme in SCHEMES:
            await console.browser.size(width, 1600)
            await console.browser.scheme(scheme)
            await console.browser.screenshot(Path(folder) / f"{name}-{width}-{scheme}.png")


@pytest.mark.peers("axe")
async def test_approver_reads_code_and_plan_and_later_the_calls(console: Console) -> None:
    browser, held = console.browser, await begun(console, HOSTILE)
    page = f"/approvals/{held['id']}"
    await check_pages(console, page, "/inbox", "/approvals")
    await browser.open(console.base + page)
    lines = await browser.run("return [...document.querySelectorAll('.code li')].map((line) => line.textContent)")
    assert len(lines) == HOSTILE.count("\n")
    assert lines[3].startswith("→")
    rows = await browser.run(
        "return [...document.querySelectorAll('[aria-label=Plan] tbody tr')].map((row) => [...row.cells].map((c) => c.innerText))"
    )
    assert {row[0]: row[1] for row in rows} == {
        "files__list_files": "allowed",
        "files__write_file": "needs approval",
        "files__delete_file": "denied",
    }
    await browser.size(1280, 900)
    await browser.click("button.approve")
    # The write waits for an approval of its own.
    await until_state(console, held["task_id"], "running", "awaiting_approval", "input_required")
    await browser.until("/write_file/.test(document.querySelector('#calls')?.textContent)")
    await check_pages(console, f"/tasks/{held['task_id']}", page, "/waterfall")
    await browser.open(f"{console.base}/tasks/{held['task_id']}")
    await browser.size(1280, 900)
    await browser.click(".steps tr:first-child a")
    await browser.until(f"document.querySelector('.facts a[href=\"/tasks/{held['task_id']}\"]')")


@pytest.mark.peers("axe")
async def test_report_of_a_failed_script_is_readable(console: Console) -> None:
    held = await begun(console, FAILS)
    await console.api("POST", f"/api/v1/approvals/{held['id']}/approve", {}, "reviewer-token")
    await until_state(console, held["task_id"], "tool_error", "failed")
    await console.browser.until("document.querySelectorAll('.report section').length === 3")
    await check_pages(console, f"/tasks/{held['task_id']}", f"/approvals/{held['id']}")
