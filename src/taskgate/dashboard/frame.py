"""The frame around every page: navigation, what the page is called, its JSON and its command, and the guard of its forms.

Templates escape everything by themselves, and every text that came from a caller or a server is first made visible: characters that
print nothing or turn text around appear as escapes. Pages work without a script; with one they change by themselves.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from taskgate import clock
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import show_json
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Role
from taskgate.core.text.plain_text import visible
from taskgate.dashboard.login import Login
from taskgate.dashboard.routes import RouteTable, Visit
from taskgate.dashboard.web import Answer, WebRequest

HERE: Final = Path(__file__).parent
STATIC: Final = {"style.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}
_FOREVER: Final = ((b"cache-control", b"public, max-age=31536000, immutable"), (b"vary", b"accept-encoding"))

Count = Callable[[Approver], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class About:
    """One page of the console: its name, who may open it, where scripts read the same, and the command that prints it."""

    title: str
    path: str
    access: Access
    api: str
    topics: tuple[str, ...] = ()
    """Page content that changes; an update of one of these topics makes an open page fetch itself again."""
    in_menu: bool = True


ABOUT: Final[Mapping[str, About]] = {
    "now": About("Now", "/now", Access.LOGIN, "/api/v1/now", ("tasks", "inbox", "servers")),
    "tasks": About("Tasks", "/tasks", Access.LOGIN, "/api/v1/tasks", ("tasks",)),
    "inbox": About("Inbox", "/inbox", Access.LOGIN, "/api/v1/inbox", ("inbox", "tasks")),
    "servers": About("Servers", "/servers", Access.SEE, "/api/v1/servers", ("servers",)),
    "scopes": About("Scopes", "/scopes", Access.ACT, "/api/v1/scopes", ("scopes",)),
    "rules": About("Rules", "/rules", Access.SEE, "/api/v1/rules"),
    "usage": About("Usage", "/usage", Access.LOGIN, "/api/v1/usage"),
    "waterfall": About("Waterfall", "/waterfall", Access.SEE, "/api/v1/waterfall"),
    "audit": About("Audit", "/audit", Access.SEE, "/api/v1/audit"),
    "system": About("System", "/system", Access.SEE, "/api/v1/system"),
    "try": About("Try", "/try", Access.LOGIN, "/api/v1/tools"),
    "approvals": About("Approvals", "/approvals", Access.SEE, "/api/v1/approvals", ("inbox",), False),
    "grants": About("Grants", "/grants", Access.SEE, "/api/v1/grants", (), False),
    "definitions": About("Definitions", "/definitions", Access.SEE, "/api/v1/pins", ("definitions",), False),
}


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


@cache
def asset(name: str) -> bytes | None:
    """A style sheet or script of ours, read once."""
    return (HERE / "static" / name).read_bytes() if name in STATIC else None


@cache
def asset_address(name: str) -> str:
    """Its address, which changes with its contents: a browser keeps it for good, and a page knows when it is outdated."""
    return f"/static/{name}?v={hashlib.sha256(asset(name) or b'').hexdigest()[:12]}"


@cache
def _small(name: str) -> bytes:
    return gzip.compress(asset(name) or b"", mtime=0)


def static_answer(name: str, accepted: bytes) -> Answer | None:
    """Small where the browser takes it so. Pages are never compressed: they hold the token of their forms beside words of an
    address, and from the length of both together somebody who listens could guess the token (BREACH)."""
    body = asset(name)
    if body is None:
        return None
    if b"gzip" not in accepted:
        return Answer(200, body, STATIC[name], _FOREVER)
    return Answer(200, _small(name), STATIC[name], (*_FOREVER, (b"content-encoding", b"gzip")))


def _harmless(value: Any) -> Any:
    """Whatever a template puts on a page, also where somebody forgot that it came from elsewhere."""
    return visible(value) if type(value) is str else value


def clear(text: object) -> str:
    """Foreign text for one line: everything invisible or deceiving is an escape."""
    return show_json(str(text))[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def moment(ms: float | str | None) -> str:
    """A time as the attribute of a `time` element has it; pages show it in the reader's own zone."""
    if ms is None or isinstance(ms, str):
        return ms or ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(ms: float | str | None) -> str:
    if ms is None:
        return ""
    at = datetime.fromisoformat(ms).timestamp() if isinstance(ms, str) else ms / 1000
    past = clock.wall() - at
    return f"{span(past)} ago" if past >= 0 else f"in {span(-past)}"


def span(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86_400)} days"
