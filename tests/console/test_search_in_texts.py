"""Search in the arguments and the result of a task, in a real Chromium: while typing, by keys, during live updates, in texts of
which the page shows a part, and without the script."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.console.accessibility import a_search_for_barriers
from tests.console.console_setup import Console, a_console, settled
from tests.harness.browser import Chromium

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("browser"), pytest.mark.asyncio(loop_scope="module")]
HOSTILE = "<img src=x onerror=document.title='owned'> .* $& \\ \u202e </pre><script>document.title='owned'</script>"
SEARCHED = f"{'filler ' * 60}Needle one, needle two. {'filler ' * 200} NEEDLE three. {HOSTILE} {'filler ' * 60}"
FIELD, COUNT = ".within input", "document.querySelector('.within output').textContent"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    async with a_console(chromium, tmp_path_factory.mktemp("search")) as made:
        yield made


async def held_task(console: Console, text: str) -> str:
    """The page of a task with this text in its arguments."""
    before = {row["id"] for row in (await console.api("GET", "/api/v1/tasks"))["tasks"]}
    await console.call("build-agent", "files__write_file", key=f"after {len(before)}", name="long.txt", text=text)
    (task,) = [row for row in (await console.api("GET", "/api/v1/tasks"))["tasks"] if row["id"] not in before]
    return f"{console.base}/tasks/{task['id']}"


async def search(console: Console, text: str) -> None:
    await console.browser.run(f"document.querySelector('{FIELD}').value = ''")
    await console.browser.type(FIELD, text)


async def current(console: Console) -> str:
    """The text before the current match and the match itself, as the highlight has it."""
    script = (
        "const [range] = CSS.highlights.get('current'), text = range.startContainer.data;"
        "return text.slice(range.startOffset, range.endOffset + 6)"
    )
    return str(await console.browser.run(script))


async def test_matches_are_marked_and_stepped_through_by_keys_and_survive_live_updates(console: Console) -> None:
    browser = console.browser
    await browser.open(await held_task(console, SEARCHED))
    await settled(browser)
    assert await browser.run("return getComputedStyle(document.querySelector('.unscripted')).display") == "none"
    await search(console, "nEEdle")
    await browser.until(f"{COUNT} === '1 of 3'")
    assert await current(console) == "Needle one, "
    await browser.press("\ue007")
    await browser.until(f"{COUNT} === '2 of 3'")
    await browser.press("\ue007")
    await browser.until(f"{COUNT} === '3 of 3'")
    assert await current(console) == "NEEDLE three"
    place = "[...CSS.highlights.get('current')][0].getBoundingClientRect()"
    box = "document.getElementById('arguments-text').getBoundingClientRect()"
    assert await browser.run(f"const m = {place}, b = {box}; return m.top >= b.top && m.bottom <= b.bottom"), "scrolled"
    version = await browser.run("return document.body.dataset.version")
    await console.call("research-agent", "files__slow_report", seconds=600)
    await browser.until(f"document.body.dataset.version !== {version!r}")
    assert await browser.run(f"return {COUNT}") == "3 of 3"
    assert await current(console) == "NEEDLE three"
    await browser.press("\ue007")
    await browser.until(f"{COUNT} === '1 of 3'")
    await browser.type(FIELD, "\ue008\ue007")  # Shift and Enter
    await browser.until(f"{COUNT} === '3 of 3'")
    await browser.submit(".within [value=back]")
    await browser.until(f"{COUNT} === '2 of 3'")
    assert "find=" not in await browser.url()


async def test_texts_are_searched_literally_and_hostile_text_stays_text(console: Console) -> None:
    browser = console.browser
    await browser.open(await held_task(console, SEARCHED))
    await settled(browser)
    for text, matches in (
        (".*", 1),
        ("$&", 1),
        ("<img src=x", 1),
        ("\\\\", 1),
        ("[", 0),
        ("(a+)+$", 0),
        ("filler", 320),
    ):
        await search(console, text)
        await browser.until(f"{COUNT} === '{f'1 of {matches}' if matches else 'No match'}'")
        assert await browser.run("return CSS.highlights.get('found').size") == matches, text
    await browser.open(await browser.url() + "?find=%3Cimg+src%3Dx&full=1")
    await settled(browser)
    await browser.until(f"{COUNT} === '1 of 1'")
    assert not await browser.run("return document.querySelector('main img, main script, [data-search] mark')")
    assert "owned" not in str(await browser.run("return document.title"))


async def test_the_whole_text_is_searched_if_the_page_shows_a_part(console: Console) -> None:
    browser = console.browser
    await browser.open(await held_task(console, "needle " + "filler " * 2_000 + " the last needle"))
    await settled(browser)
    assert await browser.text("[data-copy-of='arguments-text']") == "Copy the shown part"
    await search(console, "needle")
    await browser.until(f"{COUNT}.startsWith('1 of 1;')")
    await browser.press("\ue007")
    await browser.until("location.search === '?find=needle' && document.body.dataset.live === 'yes'")
    await browser.until(f"{COUNT} === '1 of 2'")
    assert await browser.text("[data-copy-of='arguments-text']") == "Copy"
    await browser.type(FIELD, "\ue007")
    await browser.until(f"{COUNT} === '2 of 2'")


@pytest.mark.peers("axe")
async def test_a_page_with_matches_has_no_barriers_with_and_without_the_script(console: Console) -> None:
    browser = console.browser
    page = await held_task(console, SEARCHED) + "?find=needle"
    found: list[str] = []
    async with a_search_for_barriers(browser) as barriers:
        await browser.open(page)
        await settled(browser)
        found += [f"with the script {one}" for one in await barriers.on_this_page()]
        await browser.refuse("*/static/console.js*")
        try:
            await browser.open(page)
            assert await browser.run("return document.querySelectorAll('[data-search] mark').length") == 3
            found += [f"without {one}" for one in await barriers.on_this_page()]
        finally:
            await browser.refuse()
    assert not found, "\n".join(found)
