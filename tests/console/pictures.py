"""Pictures of every page of the console on a team's day, wide and narrow, light and dark: `make screenshots`."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from tests.console import team_day
from tests.console.stage import PAGES, a_console, settled
from tests.harness.browser import chromium

SIZES = {"wide": (1280, 900), "narrow": (390, 844)}


def name_of(page: str) -> str:
    return re.sub(r"\W+", "-", page).strip("-")


async def take(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="console-") as place, chromium(pictures=True) as browser:
        (Path(place) / "state").mkdir()
        await team_day.fill(Path(place) / "state" / "taskgate.db")
        async with a_console(browser, Path(place), team_day.config(), listed=len(team_day.SERVERS) - 1) as console:
            await team_day.open_calls(console)
            running = (await console.api("GET", "/api/v1/tasks?state=open"))["tasks"]
            (held, *_) = await console.api("GET", "/api/v1/approvals")
            shown = {page: name_of(page) for page in PAGES}
            shown |= {f"/tasks/{running[-1]['id']}": "task", f"/approvals/{held['id']}": "approval"}
            for scheme in ("light", "dark"):
                await console.browser.scheme(scheme)
                for size, (width, height) in SIZES.items():
                    await console.browser.size(width, height)
                    for page, name in shown.items():
                        await console.browser.open(console.base + page)
                        await settled(console.browser)
                        await console.browser.screenshot(folder / f"{name}-{size}-{scheme}.png")


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots")))
