"""The frame around every page: navigation, what the page is called, its JSON and its command, and the guard of its forms.

Templates escape everything by themselves, and every text that came from a caller or a server is first made visible: characters that
print nothing or turn text around appear as escapes. Pages work without a script; with one they change by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import show_json
from taskgate.core.identity.roles import Role
from taskgate.core.text.plain_text import visible
from taskgate.dashboard.assets import HERE, asset_address
from taskgate.dashboard.login import Login
from taskgate.dashboard.navigation import ABOUT, About
from taskgate.dashboard.routes import RouteTable, Visit
from taskgate.dashboard.text_filters import ago, clear, moment, span
from taskgate.dashboard.web import Answer, WebRequest

Count = Callable[[Approver], Awaitable[int]]


@cache
def _templates() -> Environment:
    """One for all consoles of a process."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        finalize=_harmless,
    )
    templates.filters.update(ago=ago, moment=moment, span=span, clear=clear, shown=show_json)
    return templates


@cache
def _compile_templates() -> None:
    templates = _templates()
    for name in templates.list_templates():
        templates.get_template(name)


async def templates_compiled() -> None:
    """Compile all templates, the first time and beside the event loop: one takes up to 25 ms."""
    if not _compile_templates.cache_info().currsize:
        await asyncio.to_thread(_compile_templates)


class Frame:
    """`served` says whether there is a page at an address: the menu offers nothing else."""

    def __init__(self, login: Login, waiting: Count, served: Callable[[str], bool], api: RouteTable) -> None:
        self._login = login
        self._api = api
        self._waiting = waiting
        self._served = served
        self._templates = _templates()

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
        """A page of the console. `command` and `api` replace those of the page where it is about one thing."""
        waiting = await self._waiting(visit.who)
        about = ABOUT[name]
        shown_command = command if command is not None else self._api.command("GET", about.api)
        values |= {"command": shown_command, "api": api or about.api, "topics": about.topics}
        values["version"] = visit.version
        values.setdefault("title", about.title)
        return self.plain(template, visit.request, visit.who, here=name, waiting=waiting, **values)

    def plain(
        self,
        template: str,
        request: WebRequest,
        who: Approver | None,
        *,
        status: int = 200,
        note: str | None = None,
        note_kind: str = "",
        **values: Any,
    ) -> Answer:
        """Without what the console's pages have: logins, messages, pages for one user."""
        token = self._login.form_token(request.cookie(self._login.cookie_name))
        shown = {"waiting": 0, "command": "", "api": "", "topics": (), "version": "", "here": "", "title": "", **values}
        text = self._templates.get_template(template).render(
            who=who,
            roles=", ".join(role for role in Role if who is not None and role in who.roles),
            form_token=token,
            note=note,
            note_kind=note_kind,
            menu=self._menu(who),
            asset=asset_address,
            command_for=self._api.command,
            **shown,
        )
        return Answer(status, text.encode("utf-8", "replace"))

    def command_for(self, method: str, path: str, **values: str) -> str:
        """The command that mirrors a route of the API."""
        return self._api.command(method, path, **values)

    def message(
        self, request: WebRequest, who: Approver | None, status: int, title: str, text: str, *, reason: str = ""
    ) -> Answer:
        """A page with one sentence. `reason` is the machine-readable reason of a refusal."""
        return self.plain("message.html", request, who, status=status, title=title, text=text, reason=reason)

    def _menu(self, who: Approver | None) -> list[tuple[str, About]]:
        if who is None:
            return []
        open_to = [
            (name, page)
            for name, page in ABOUT.items()
            if page.access.permission is None or who.may(page.access.permission)
        ]
        return [(name, page) for name, page in open_to if page.in_menu and self._served(page.path)]


def _harmless(value: Any) -> Any:
    """Whatever a template puts on a page, also where somebody forgot that it came from elsewhere."""
    return visible(value) if type(value) is str else value
