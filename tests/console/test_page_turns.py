"""Pages that open consoles fetch after a change are rendered a few at a time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from taskgate.access.authorize import Authorized
from taskgate.access.proof import HttpProof
from taskgate.core.identity.access import Access
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.page_turns import MAX_RENDERINGS, PageTurns
from taskgate.dashboard.routes import Visit, page_route
from taskgate.dashboard.web import Answer, WebRequest


async def test_pages_after_a_change_are_rendered_a_few_at_a_time_and_others_at_once() -> None:
    active, maximum, finished = 0, 0, 0

    async def handler(visit: Visit) -> Answer:
        nonlocal active, maximum, finished
        active += 1
        maximum = max(maximum, active)
        for _ in range(5):
            await asyncio.sleep(0)
        active, finished = active - 1, finished + 1
        return Answer(200, b"")

    route, turns = page_route("/tasks", Access.LOGIN, handler, page=Page("tasks", "Tasks", "")), PageTurns()

    def fetched(headers: dict[bytes, bytes]) -> asyncio.Future[Any]:
        nothing = cast(HttpProof, None)
        request = WebRequest(method="GET", path="/tasks", query={}, headers=headers, proof=nothing)
        visit = Visit(request=request, person=None, values={}, authorized=cast(Authorized, None), version="1")
        return asyncio.ensure_future(turns.answer(route, visit))

    live = [fetched({b"x-live-update": b"1"}) for _ in range(20)]
    await asyncio.sleep(0)
    await fetched({})
    assert finished < 10, "a page that a person opens does not wait for those of open consoles"
    live[5].cancel()
    await asyncio.gather(*live, return_exceptions=True)
    assert finished == 20, "a cancelled fetch keeps no turn"
    assert maximum == MAX_RENDERINGS + 1
