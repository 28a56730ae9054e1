"""The console and the JSON API, whose modules are loaded with the first request for one of them.

They are a tenth of the CPU time of a start and 2.5 MB of memory, and many gateways never receive such a request. The modules are
loaded in a thread, because importing them would block the event loop for 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from taskgate.access.open_responses import ReplyInProgress
from taskgate.late_imports import CONSOLE, load

if TYPE_CHECKING:
    from taskgate.dashboard.routes import Route
    from taskgate.dashboard.site import Dashboard
    from taskgate.dashboard.web import Receive, Scope, Send


class LateConsole:
    """`create` imports the modules if they are not loaded yet."""

    def __init__(self, create: Callable[[], Dashboard]) -> None:
        self._create = create
        self._dashboard: Dashboard | None = None
        self._is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._dashboard is None:
            await load(*CONSOLE)
        await self.dashboard(scope, receive, send)

    @property
    def dashboard(self) -> Dashboard:
        if self._dashboard is None:
            self._dashboard = self._create()
            if self._is_ending:
                self._dashboard.live.end_all()
        return self._dashboard

    @property
    def routes(self) -> tuple[Route, ...]:
        return self.dashboard.routes

    @property
    def replies_in_progress(self) -> Iterable[ReplyInProgress]:
        return self._dashboard.api.calls.in_progress if self._dashboard is not None else ()

    def end_streams(self) -> None:
        """End the event streams of open pages, also of those that are opened from now on."""
        self._is_ending = True
        if self._dashboard is not None:
            self._dashboard.live.end_all()

    async def close(self) -> None:
        if self._dashboard is not None:
            await self._dashboard.api.calls.close()
