"""What axe finds on pages of the console, at each size and in each scheme, and whether a page must be moved sideways to be read.

Contrast is by far the most expensive of axe's rules. It depends on colours, the backgrounds behind them and the font: text
with the same properties as text that axe has already checked, on another page or at another size, is not checked again.
Everything else depends on the size only.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.harness.absent import HOME
from tests.harness.browser import Browser

AXE = HOME / "axe" / "node_modules" / "axe-core" / "axe.min.js"
SIZES = (390, 1280)
SCHEMES = ("light", "dark")
RULES = (
    "return axe.run({resultTypes: ['violations'], rules: {'color-contrast': {enabled: false}}}).then(r => r.violations)"
)
CONTRAST = """
const known = new Set(%s), behind = new Map([[null, '']]), looks = new Map();
const surface = (element) => {
  if (!behind.has(element)) {
    const s = getComputedStyle(element);
    const own = [s.backgroundColor, s.backgroundImage, s.opacity, s.filter, s.mixBlendMode].join(' ');
    const place = ['absolute', 'fixed'].includes(s.position) ? s.position + JSON.stringify(element.getBoundingClientRect()) : '';
    const plain = own === 'rgba(0, 0, 0, 0) none 1 none normal' && !place;
    behind.set(element, surface(element.parentElement) + (plain ? '' : '/' + own + place));
  }
  return behind.get(element);
};
for (const element of document.querySelectorAll('*')) {
  const text = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  if (!text && !element.matches('input, select, textarea')) continue;
  const s = getComputedStyle(element);
  const off = Boolean(element.closest(':disabled, [aria-disabled]') || element.closest('label')?.control?.disabled);
  const font = [s.color, s.fontSize, s.fontWeight, s.textShadow, s.visibility].join(' ');
  looks.set(element, [element.localName, font, off, surface(element)].join('|'));
}
const include = [...looks.keys()].filter((element) => !known.has(looks.get(element)) && element.checkVisibility());
if (!include.length) return {judged: [], violations: []};
const how = {runOnly: ['color-contrast'], elementRef: true, resultTypes: ['violations', 'passes']};
return axe.run({include}, how).then(({passes, violations}) => {
  const nodes = [...passes, ...violations].flatMap((rule) => rule.nodes);
  const judged = [...new Set(nodes.map((node) => looks.get(node.element)))].filter(Boolean);
  return {judged, violations: violations.map(({id, nodes}) => ({id, nodes: nodes.map(({html}) => ({html}))}))};
});
"""


class Barriers:
    """For pages of one kind, one after the other."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._checked: set[str] = set()

    async def on_this_page(self) -> list[str]:
        if not await self._browser.run("return 'axe' in window"):
            await self._browser.run(AXE.read_text())
        found: list[str] = []
        for width in SIZES:
            await self._browser.size(width, 900)
            found += [f"{width} {one}" for one in _described(await self._browser.run(RULES))]
            if await self._browser.run("return document.documentElement.scrollWidth > window.innerWidth"):
                found.append(f"{width}: wider than the screen")
            for scheme in SCHEMES:
                await self._browser.scheme(scheme)
                found += [f"{width} {scheme} {one}" for one in await self._contrast()]
        return found

    async def _contrast(self) -> list[str]:
        text = await self._browser.run(CONTRAST % json.dumps(sorted(self._checked)))
        if not text["violations"]:
            self._checked.update(text["judged"])
        return _described(text["violations"])


def _described(violations: list[dict[str, Any]]) -> list[str]:
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in violations]


@asynccontextmanager
async def a_search_for_barriers(browser: Browser) -> AsyncIterator[Barriers]:
    """Pages that are opened inside begin with axe: it is half a megabyte."""
    async with browser.pages_begin_with(AXE.read_text()):
        yield Barriers(browser)
