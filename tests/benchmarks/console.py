"""What the console costs on this machine: `make bench-console`.

With 10,000 tasks in SQLite and in PostgreSQL: server time and bytes of each page (promised: 100 ms, and 60 KB with script and
style); 200 open consoles while nothing happens (5% of a core); processor time of a call with none and with 50 consoles open (no
difference); and, where Chromium is installed, how long after its commit a task stands on an open page (200 ms).
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
from tests.benchmarks.measure import processor_seconds
from tests.benchmarks.store import a_call
from tests.console.stage import CONFIG, Console, settled
from tests.harness.absent import find_browser, find_driver
from tests.harness.browser import a_browser
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.postgres import fresh_url

from taskgate.core.tasks.transition import Cancelled
from taskgate.ports.store_answers import Change
from taskgate.store.postgres.store import open_store as open_postgres
from taskgate.store.sqlite.store import open_store as open_sqlite

TASKS = 10_000
OPEN = 200
PAGES = ("/now", "/tasks", "/tasks?text=nothing", "/tasks?scope=default", "/inbox", "/servers", "/rules", "/usage")
PAGES += ("/waterfall", "/audit", "/system", "/scopes/default", "/try")
IDLE_S = 15
CALLS = 400
EVENTS = 20


async def fill(store: Any) -> None:
    """Tasks that ended, and some that are open."""
    await store.claim()
    for start in range(0, TASKS, 100):
        made = await asyncio.gather(*(store.accept(a_call(f"caller-{number % 50}")) for number in range(100)))
        for change in made if start >= OPEN else ():
            assert isinstance(change, Change)
        if start >= OPEN:
            await asyncio.gather(*(store.advance(change.task.id, Cancelled()) for change in made))
    await store.close()


async def cookie_of(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    page = await http.get(gateway.base + "/login")
    token = re.search(r'name="form_token" value="([^"]*)"', page.text)
    assert token is not None
    operator = (gateway.state / "operator-token").read_text().strip()
    await http.post(gateway.base + "/login", data={"form_token": token[1], "token": operator})


async def pages(gateway: Gateway, http: httpx2.AsyncClient, store: str) -> None:
    first = await http.get(gateway.base + "/now")
    assets = 0
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', first.text):
        assets += int((await http.get(gateway.base + address)).headers["content-length"])
    for path in PAGES:
        took, cpu, size = [], processor_seconds(gateway.pid), 0
        for _ in range(10):
            began = time.perf_counter()
            reply = await http.get(gateway.base + path)
            took.append((time.perf_counter() - began) * 1000)
            assert reply.status_code == 200, path
            size = len(reply.content)
        spent = (processor_seconds(gateway.pid) - cpu) * 100
        print(
            f"{store:10} {path:24} p50 {statistics.median(took):7.1f} ms  CPU {spent:6.1f} ms  {(size + assets) / 1000:5.1f} KB"
        )


async def consoles(gateway: Gateway, count: int) -> list[asyncio.StreamWriter]:
    token = (gateway.state / "operator-token").read_text().strip()
    head = f"GET /api/v1/events HTTP/1.1\r\nhost: 127.0.0.1:{gateway.port}\r\nauthorization: Bearer {token}\r\n\r\n"
    found = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head.encode())
        await reader.readuntil(b"\r\n\r\n")
        found.append(writer)
    return found


async def idle(gateway: Gateway, count: int) -> None:
    streams = await consoles(gateway, count)
    await asyncio.sleep(2)
    before = processor_seconds(gateway.pid)
    await asyncio.sleep(IDLE_S)
    share = (processor_seconds(gateway.pid) - before) / IDLE_S * 100
    print(f"{count:4} idle consoles: {share:.2f}% of a core")
    for writer in streams:
        writer.close()


async def relay(console: Console, count: int) -> None:
    streams = await consoles(console.gateway, count)
    await console.call("build-agent", "files__list_files")
    before = processor_seconds(console.gateway.pid)
    for _ in range(CALLS):
        await console.call("build-agent", "files__list_files")
    spent = (processor_seconds(console.gateway.pid) - before) / CALLS * 1000
    print(f"{count:4} consoles open: {spent:.3f} ms CPU a call")
    for writer in streams:
        writer.close()


async def on_screen(console: Console) -> None:
    """From the time that the store wrote down to the page's own, on one clock."""
    browser = console.browser
    await console.log_in()
    await browser.open(console.base + "/now")
    await settled(browser)
    await browser.run(
        "window.seen = {}; new MutationObserver(() => { for (const row of document.querySelectorAll('#running li'))"
        " seen[row.id] ??= Date.now(); }).observe(document.getElementById('running'), {childList: true, subtree: true})"
    )
    took = []
    for _ in range(EVENTS):
        await console.call("build-agent", "files__delete_file", name="budget.txt")
        (task,) = (await console.api("GET", "/api/v1/tasks?limit=1"))["tasks"][:1]
        row = f"task-{task['id']}"
        await browser.until(f"window.seen[{row!r}]")
        made = await browser.run(f"return window.seen[{row!r}] - Date.parse({task['created_at']!r})")
        took.append(float(made))
        await console.api("POST", f"/api/v1/approvals/{task['approval_id']}/deny", {})
        await asyncio.sleep(1)
    took.sort()
    print(f"on screen after its commit: p50 {statistics.median(took):.0f} ms, worst {took[-1]:.0f} ms of {EVENTS}")


async def measured(store: str, folder: Path) -> None:
    config: dict[str, Any] = dict(CONFIG)
    if store == "postgres":
        url = fresh_url()
        await fill(open_postgres(url))
        config["store"] = {"url": url}
    else:
        (folder / "state").mkdir()
        await fill(open_sqlite(folder / "state" / "taskgate.db"))
    async with running_gateway(config, folder) as gateway, httpx2.AsyncClient(verify=NO_TLS, timeout=60) as http:
        await cookie_of(gateway, http)
        await pages(gateway, http, store)


async def main() -> None:
    for store in sys.argv[1:] or ("sqlite", "postgres"):
        with tempfile.TemporaryDirectory(prefix="bench-console-") as place:
            await measured(store, Path(place))
    with tempfile.TemporaryDirectory(prefix="bench-console-") as place:
        async with running_gateway(CONFIG, Path(place)) as gateway, httpx2.AsyncClient(verify=NO_TLS) as http:
            for count in (0, 200, 0):
                await idle(gateway, count)
            for count in (0, 50, 0, 50):
                await relay(Console(gateway, http, None), count)  # type: ignore[arg-type]
            if find_browser() and find_driver():
                async with a_browser() as browser:
                    await on_screen(Console(gateway, http, browser))


if __name__ == "__main__":
    asyncio.run(main())
