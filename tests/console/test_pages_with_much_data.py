"""Every page with 200,000 rows of history, 10,000 open tasks, a million audit rows and 40 servers in a real Chromium: `make
pages-with-much-data`. At both sizes and in both colour schemes each page loads, fits the screen and has no barrier.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.console import PAGES
from tests.benchmarks.growth import growing_server
from tests.console.accessibility import a_search_for_barriers
from tests.console.large_store import SERVERS, TOOLS_OF_SERVER, Amounts, fill_sqlite
from tests.console.stage import CONFIG, Console, a_console, settled
from tests.harness.browser import Chromium

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.peers("browser"), pytest.mark.long]


async def _names(console: Console) -> dict[str, str]:
    """One item of each kind that has a page."""
    (held, *_) = await console.api("GET", "/api/v1/approvals?limit=1")
    (ended, *_) = (await console.api("GET", "/api/v1/history?kind=task&limit=1"))["rows"]
    (opened, *_) = (await console.api("GET", "/api/v1/tasks?state=open&limit=1"))["tasks"]
    return {"open": opened["id"], "ended": ended["id"], "approval": held["id"]}


@pytest.mark.peers("axe")
async def test_every_page_is_accessible_and_fits_the_screen_with_much_data(chromium: Chromium, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    await fill_sqlite(tmp_path / "state" / "taskgate.db", Amounts())
    found: list[str] = []
    async with growing_server(TOOLS_OF_SERVER) as url:
        config: dict[str, Any] = {**CONFIG, "servers": {f"server-{number}": {"url": url} for number in range(SERVERS)}}
        async with (
            a_console(chromium, tmp_path, config) as console,
            a_search_for_barriers(console.browser) as barriers,
        ):
            names = await _names(console)
            for page in PAGES:
                await console.browser.open(console.base + page.format(**names))
                await settled(console.browser)
                seen = [f"{page} {one}" for one in await barriers.on_this_page()]
                print(f"{page}: {len(seen)} barriers", flush=True)
                found += seen
    assert not found, "\n".join(found)
