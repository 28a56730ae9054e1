"""Renders a page once for all consoles of a person that fetch the same view after a change.

A change makes every open console fetch its page again within milliseconds. Those fetches (`LIVE_HEADER`) share one rendering if
everything that it depends on is equal: the address, the person with all roles, names and the kind of login, the named cookies, and
the version of the data. To guarantee this, the page is rendered from these values only: the visit that its handler gets has no
other header or cookie of any console, and no time of login. The form token belongs to one session; the page is rendered with a
random text in its place, which is replaced for each console.

A page that a person opens, or that follows an action, is always rendered for it alone, and at once. Fetches after a change are
rendered a few at a time: calls and people do not wait behind the pages of all open consoles, and the first consoles do not wait
for the last.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.proof import HttpProof
from taskgate.access.routes import RouteKind
from taskgate.core.governance.approver import Approver
from taskgate.dashboard.routes import Route, Visit
from taskgate.dashboard.web import Answer, EventAnswer, WebRequest

LIVE_HEADER: Final = b"x-live-update"
"""Sent by the script of an open page when it fetches itself because of a change."""
SHARED_S: Final = 1.0
MAX_SHARED: Final = 64
MAX_RENDERINGS: Final = 2
"""Pages that are rendered at the same time after a change: one while another one waits for the store."""


class View(NamedTuple):
    """Everything that a shared page is rendered from."""

    path: str
    raw_query: str
    cookies: tuple[tuple[str, str], ...]
    locked: bool
    person: Approver
    """Without the time of login, so that consoles with different sessions of a person have the same view."""
    version: str

    def request(self, original: WebRequest, form_token: str) -> WebRequest:
        """A request for this view that shows nothing of the console that sent the original."""
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies)
        return WebRequest(
            method=original.method,
            path=self.path,
            query=original.query,
            headers={b"cookie": cookie.encode("latin-1")} if cookie else {},
            proof=HttpProof(Arrival("", on_loopback=False, by_proxy=False), None, ()),
            locked=self.locked,
            raw_query=self.raw_query,
            form_token=form_token,
        )


def view_of(visit: Visit, cookies: tuple[str, ...]) -> View:
    request = visit.request
    kept = tuple((name, value) for name in cookies if (value := request.cookie(name)) is not None)
    person = replace(visit.user, authenticated_at=None)
    return View(
        path=request.path,
        raw_query=request.raw_query,
        cookies=kept,
        locked=request.locked,
        person=person,
        version=visit.version,
    )


class _Rendering(NamedTuple):
    at: float
    placeholder: bytes
    answer: asyncio.Task[Answer | EventAnswer]


class SharedPages:
    def __init__(self, form_token: Callable[[WebRequest], str]) -> None:
        self._form_token = form_token
        self._renderings: dict[View, _Rendering] = {}
        self._turns = asyncio.Semaphore(MAX_RENDERINGS)

    async def answer(self, route: Route, visit: Visit) -> Answer | EventAnswer:
        """The reply of this route, with the form token of the visit's session."""
        page = route.page
        if LIVE_HEADER not in visit.request.headers or route.kind is not RouteKind.PAGE or route.method != "GET":
            return await route.handler(visit)
        if page is None or not page.shared:
            return await self._in_turn(route, visit)
        view, now = view_of(visit, page.cookies), clock.monotonic()
        known = self._renderings.get(view)
        if known is None or now - known.at >= SHARED_S:
            known = self._render(route, visit, view, now)
        # The rendering goes on for other consoles if this one disconnects.
        answer = await asyncio.shield(known.answer)
        assert isinstance(answer, Answer), "pages are no streams"
        token = self._form_token(visit.request).encode("ascii")
        return replace(answer, body=answer.body.replace(known.placeholder, token))

    def _render(self, route: Route, visit: Visit, view: View, now: float) -> _Rendering:
        placeholder = secrets.token_hex(16)
        alone = replace(visit, request=view.request(visit.request, placeholder), person=view.person)
        task = asyncio.create_task(self._in_turn(route, alone))
        task.add_done_callback(_retrieve)
        kept = [(each, made) for each, made in self._renderings.items() if now - made.at < SHARED_S and each != view]
        self._renderings = dict(kept[-(MAX_SHARED - 1) :])
        rendering = self._renderings[view] = _Rendering(now, placeholder.encode("ascii"), task)
        return rendering

    async def _in_turn(self, route: Route, visit: Visit) -> Answer | EventAnswer:
        async with self._turns:
            return await route.handler(visit)


def _retrieve(task: asyncio.Task[Answer | EventAnswer]) -> None:
    """Mark the exception of a rendering as handled: consoles that wait for it get it, and there may be none any more."""
    if not task.cancelled():
        task.exception()
