"""Limits how many pages are rendered at the same time after a change.

A change makes every open console fetch its page again within milliseconds. Those fetches (`LIVE_HEADER`) are rendered a few at a
time, so that calls and people do not wait behind the pages of all open consoles. A page that a person opens, or that follows an
action, is rendered at once.
"""

from __future__ import annotations

import asyncio
from typing import Final

from taskgate.access.routes import RouteKind
from taskgate.dashboard.routes import Route, Visit
from taskgate.dashboard.web import Answer, EventAnswer

LIVE_HEADER: Final = b"x-live-update"
"""Sent by the script of an open page when it fetches itself because of a change."""
MAX_RENDERINGS: Final = 2
"""One while another one waits for the store."""


class PageTurns:
    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(MAX_RENDERINGS)

    async def answer(self, route: Route, visit: Visit) -> Answer | EventAnswer:
        """The reply of this route."""
        if LIVE_HEADER not in visit.request.headers or route.kind is not RouteKind.PAGE or route.method != "GET":
            return await route.handler(visit)
        async with self._turns:
            return await route.handler(visit)
