"""The frame of every page: menu, title, addresses of the JSON and the command, and the token of its forms.

Templates escape HTML, and invisible or misleading characters in text from callers and servers are shown as escapes. Pages work
without JavaScript; with it they update themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from taskgate.core.governance.approver import Approver
from taskgate.core.identity.roles import Role
from taskgate.dashboard.assets import asset_address
from taskgate.dashboard.login import Login
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.routes import Route, RouteTable, Visit
from taskgate.dashboard.topics import MENU_TOPIC
from taskgate.dashboard.web import Answer, WebRequest

if TYPE_CHECKING:
    from jinja2 import Environment

Count = Callable[[Approver], Awaitable[int]]


@cache
def _templates() -> Environment:
    from taskgate.dashboard.template_environment import environment

    return environment()


async def templates_compiled() -> None:
    """Compile all templates once, in a thread: that takes about 0.5 s, and the event loop goes on meanwhile."""
    if not _templates.cache_info().currsize:
        await asyncio.to_thread(_templates)


class Frame(msgspec.Struct, eq=False):
    _login: Login
    _waiting: Count
    _pages: Callable[[], RouteTable]
    _api: RouteTable

    async def page(
        self,
        visit: Visit,
        name: str,
        template: str,
        *,
        command: str | None = None,
        api: str | None = None,
        **values: Any,
    ) -> Answer:
        """A page of the console. `command` and `api` replace those of the page where it shows one item."""
        waiting = await self._waiting(visit.user)
        about = self._pages().pages[name].page
        assert about is not None
        shown_command = command if command is not None else self._api.command("GET", about.json)
        values |= {"command": shown_command, "api": api or about.json, "topics": about.topics}
        values["version"] = visit.version
        values.setdefault("title", about.title)
        return self.plain(template, visit.request, visit.user, here=name, waiting=waiting, **values)

    def plain(
        self,
        template: str,
        request: WebRequest,
        user: Approver | None,
        *,
        status: int = 200,
        note: str | None = None,
        note_kind: str = "",
        **values: Any,
    ) -> Answer:
        """A page without JSON, command and count: logins, messages, pages of one question."""
        token = self._login.form_token(request.cookie(self._login.cookie_name))
        shown = {"waiting": 0, "command": "", "api": "", "topics": (), "version": "", "here": "", "title": ""}
        shown |= {"find_text": "", **values}
        page = _templates().get_template(template)
        text = page.render(
            user=user,
            roles=", ".join(role for role in Role if user is not None and role in user.roles),
            form_token=token,
            note=note,
            note_kind=note_kind,
            menu=self.menu(user),
            asset=asset_address,
            command_for=self._api.command,
            menu_topic=MENU_TOPIC,
            **shown,
        )
        return Answer(status, text.encode("utf-8", "replace"))

    def command_for(self, method: str, path: str, **values: str) -> str:
        """The command that mirrors a route of the API."""
        return self._api.command(method, path, **values)

    def message(
        self, request: WebRequest, user: Approver | None, status: int, title: str, text: str, *, reason: str = ""
    ) -> Answer:
        """A page with one sentence. `reason` is the machine-readable reason of a refusal."""
        return self.plain("message.html", request, user, status=status, title=title, text=text, reason=reason)

    def menu(self, user: Approver | None) -> list[tuple[Route, Page]]:
        """The pages that this person may open, in the order of the menu."""
        if user is None:
            return []
        found = [
            (route, route.page)
            for route in self._pages().pages.values()
            if route.page is not None and route.page.menu is not None
            if route.access.permission is None or user.may(route.access.permission)
        ]
        return sorted(found, key=lambda entry: entry[1].menu or 0)
