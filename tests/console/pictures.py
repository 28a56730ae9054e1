"""Pictures of every page of the console on a team's day, wide and narrow, light and dark: `make screenshots`."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from tests.console import team_day
from tests.console.console_setup import PAGES, a_console, settled
from tests.harness.browser import chromium

SIZES = {"wide": (1280, 900), "narrow": (390, 844)}


def name_of(page: str) -> str:
    return re.sub(r"\W+", "-", page).strip("-")


async def take(folder: Path, only: Collection[str] = ()) -> None:
    """Of all pages, or of those with these names."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="console-") as place, chromium(pictures=True) as browser:
        (Path(place) / "state").mkdir()
        await team_day.fill(Path(place) / "state" / "taskgate.db")
        async with a_console(browser, Path(place), team_day.config(), listed=len(team_day.SERVERS) - 1) as console:
            deployment = await team_day.open_calls(console)
            (held, *_) = await console.api("GET", "/api/v1/approvals")
            shown = {page: name_of(page) for page in PAGES}
            shown |= {
                f"/tasks/{deployment}": "task",
                f"/tasks/{deployment}?find=healthy": "task-search",
                f"/approvals/{held['id']}": "approval",
                "/try?scope=default&tool=deploy__deploy_service": "try-form",
            }
            for scheme in ("light", "dark"):
                await console.browser.scheme(scheme)
                for size, (width, height) in SIZES.items():
                    await console.browser.size(width, height)
                    for page, name in shown.items():
                        if only and name not in only:
                            continue
                        await console.browser.open(console.base + page)
                        await settled(console.browser)
                        await console.browser.screenshot(folder / f"{name}-{size}-{scheme}.png")


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"), sys.argv[2:]))
