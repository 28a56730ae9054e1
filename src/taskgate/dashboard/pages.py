"""The inbox as plain web pages: no script, nothing decided by opening a link, every foreign text a text node.

Templates escape everything by themselves, and every text that came from a caller or a server is first made visible: characters that
print nothing or turn text around appear as escapes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from taskgate import clock
from taskgate.core.activity.diagrams import svg
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import PAGE_CHANNEL, Approver, Verdict
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.governance.difference import Change
from taskgate.core.identity.roles import Permission
from taskgate.core.plain_text import visible
from taskgate.dashboard.elicitations import Elicitations
from taskgate.dashboard.inbox import Inbox, Shown
from taskgate.dashboard.login import Login
from taskgate.dashboard.rows import grant_row, vote_row
from taskgate.dashboard.web import PAGE, Answer, Route, WebRequest, find_route, redirect
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.governance.standing_grants import GrantWish

PageRoute = Route[Callable[[WebRequest, Approver, list[str]], Awaitable[Answer]]]
HERE: Final = Path(__file__).parent
FIRST_LOOK: Final = 20_000
"""So many characters of arguments are shown at once; more of them only when asked for, and approved only then."""
_THANKS: Final = {
    "approve": "Your approval is noted.",
    "deny": "Denied. The tool will not run, and the caller is told.",
}
MOST_DIGITS: Final = 15
_REFRESH: Final = ((b"refresh", b"15"),)


class Pages:
    def __init__(self, gateway: Gateway, inbox: Inbox, login: Login) -> None:
        self._gateway = gateway
        self._inbox = inbox
        self._login = login
        self.routes = self._routes()
        self._elicitations = Elicitations(gateway, self._page)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            finalize=_harmless,
        )

    def _routes(self) -> tuple[PageRoute, ...]:
        return (
            Route("GET", "approvals", Permission.SEE, self._list),
            Route("GET", "approvals/*", Permission.SEE, self._card),
            Route("POST", "approvals/*/approve", Permission.DECIDE, self._decide),
            Route("POST", "approvals/*/deny", Permission.DECIDE, self._decide),
            Route("GET", "grants", Permission.SEE, self._grants),
            Route("POST", "grants/*/revoke", Permission.DECIDE, self._revoke),
            Route("GET", "definitions", Permission.SEE, self._definitions),
            Route("POST", "definitions/accept", Permission.ACT, self._accept),
            Route("GET", "waterfall", Permission.SEE, self._waterfall),
        )

    async def answer(self, request: WebRequest, who: Approver) -> Answer:
        """One page, or one decision from a form of ours."""
        parts = [part for part in request.path.split("/") if part]
        if parts[:1] == ["elicitations"] and 2 <= len(parts) <= 3:
            return await self._elicitations.answer(request, who, parts[1], parts[2] if len(parts) == 3 else None)
        route = find_route(self.routes, request.method, parts)
        if route is None:
            return self.message(request, who, 404, "Nothing here", "There is nothing at this address.")
        if not who.may(route.needs):
            text = f"This needs a role that may {route.needs.value}."
            return self.message(request, who, 403, "Not you", text)
        return await route.handler(request, who, parts)

    async def _grants(self, request: WebRequest, who: Approver, _parts: list[str]) -> Answer:
        rows = [_visible(grant_row(grant)) for grant in await self._inbox.store.grants()]
        return self._page("grants.html", request, who, here="grants", rows=rows)

    async def _revoke(self, _request: WebRequest, who: Approver, parts: list[str]) -> Answer:
        await self._inbox.approvals.grants.revoke(who, parts[1])
        return redirect("/grants")

    async def _card(self, request: WebRequest, who: Approver, parts: list[str]) -> Answer:
        return await self._show(request, who, parts[1])

    async def _list(self, request: WebRequest, who: Approver, _parts: list[str]) -> Answer:
        everything = request.query.get("all") == "1"
        after = request.query.get("after")
        rows, more = await self._inbox.rows(everything=everything, after=_cursor(after), limit=PAGE)
        return self._page(
            "list.html",
            request,
            who,
            headers=_REFRESH if after is None else (),
            here="all" if everything else "open",
            rows=[self._timed(_visible(row)) for row in rows],
            after=more,
            waiting=await self._inbox.store.pending_count(),
        )

    async def _show(
        self,
        request: WebRequest,
        who: Approver,
        approval_id: str,
        note: str | None = None,
        status: int = 200,
        *,
        note_kind: str = "bad",
    ) -> Answer:
        shown = await self._inbox.shown(approval_id, who)
        if shown is None:
            return self.message(request, who, 404, "No such approval", "It may have been forgotten after a while.")
        if note is None and request.query.get("said") in _THANKS:
            note, note_kind = _THANKS[request.query["said"]], ""
        return self._page(
            "show.html", request, who, status=status, note=note, note_kind=note_kind, **self._parts(request, shown)
        )

    def _parts(self, request: WebRequest, shown: Shown) -> dict[str, Any]:
        text = shown.card.arguments
        cut = excerpt(text, len(text) if request.query.get("full") == "1" else FIRST_LOOK)
        governing = self._gateway.context.plan.governing
        return {
            "here": "",
            "row": self._timed(_visible(shown.row)),
            "card": shown.card,
            "arguments": cut.text,
            "left_out": cut.left_out,
            "total": len(text),
            "changes": [_change(change) for change in shown.card.changes.changes] if shown.card.changes else [],
            "votes": [_visible(vote_row(vote)) for vote in shown.card.votes],
            "may_decide": shown.may_decide,
            "grants": governing.grants and shown.row["kind"] == "tool",
            "grant_minutes": min(60, governing.longest_grant_ms // 60_000),
        }

    async def _decide(self, request: WebRequest, who: Approver, parts: list[str]) -> Answer:
        approval_id, verdict, form = parts[1], Verdict(parts[2]), request.form()
        try:
            ruling = await self._inbox.decide(
                who,
                approval_id,
                verdict,
                reason=form.get("reason", "").strip(),
                channel=PAGE_CHANNEL,
                digest=form.get("digest", ""),
                grant=self._wish(form.get("grant", "")) if verdict is Verdict.APPROVE else None,
            )
        except CallerError as problem:
            return await self._show(request, who, approval_id, problem.message, 400)
        if ruling.refusal:
            return await self._show(request, who, approval_id, ruling.text, 409)
        return redirect(f"/approvals/{approval_id}?said={verdict.value}")

    def _wish(self, word: str) -> GrantWish | None:
        if word not in ("exact", "tool", "scope"):
            return None
        longest = min(60 * 60_000, self._gateway.context.plan.governing.longest_grant_ms)
        return GrantWish(longest, exact_arguments=word == "exact", whole_scope=word == "scope")

    async def _definitions(self, request: WebRequest, who: Approver, _parts: list[str]) -> Answer:
        return self._changed_definitions(request, who)

    def _changed_definitions(self, request: WebRequest, who: Approver, note: str | None = None) -> Answer:
        rows = self._gateway.pins.changed_rows()
        for row in rows:
            row["shown"] = [
                {**c, "path": _clear(c["path"]), "before": show_json(c["before"]), "after": show_json(c["after"])}
                for c in row["changes"]["list"]
            ]
        return self._page("definitions.html", request, who, here="definitions", rows=rows, note=note, note_kind="bad")

    async def _accept(self, request: WebRequest, who: Approver, _parts: list[str]) -> Answer:
        form = request.form()
        done = await self._gateway.pins.accept(
            form.get("server", ""), form.get("tool", ""), form.get("digest", ""), who.id
        )
        if not done:
            return self._changed_definitions(request, who, "It has changed once more since you looked. Look again.")
        return redirect("/definitions")

    async def _waterfall(self, request: WebRequest, who: Approver, _parts: list[str]) -> Answer:
        drawing = svg(self._gateway.waterfall.latest(), clock.wall())
        return self._page("waterfall.html", request, who, here="waterfall", drawing=drawing)

    def login(
        self, request: WebRequest, code: str, note: str | None, status: int, back: str, *, passphrase: bool
    ) -> Answer:
        return self._page(
            "login.html",
            request,
            None,
            status=status,
            note=note,
            note_kind="bad",
            here="",
            code=code,
            back=back,
            passphrase=passphrase,
        )

    def message(self, request: WebRequest, who: Approver | None, status: int, title: str, text: str) -> Answer:
        return self._page("message.html", request, who, status=status, here="", title=title, text=text)

    def _timed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        from datetime import datetime

        now = self._inbox.store.now_ms() / 1000
        asked = datetime.fromisoformat(row["asked_at"]).timestamp()
        until = datetime.fromisoformat(row["expires_at"]).timestamp()
        return {**row, "asked_ago": f"{_span(now - asked)} ago", "left": f"{_span(until - now)} left"}

    def _page(
        self,
        template: str,
        request: WebRequest,
        who: Approver | None,
        *,
        status: int = 200,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        note: str | None = None,
        note_kind: str = "",
        **values: Any,
    ) -> Answer:
        token = self._login.form_token(request.cookie(self._login.cookie_name))
        text = self._templates.get_template(template).render(
            who=who, form_token=token, note=note, note_kind=note_kind, **values
        )
        return Answer(status, text.encode("utf-8", "replace"), headers=headers)


def _harmless(value: Any) -> Any:
    """Whatever a template puts on a page, also where somebody forgot that it came from elsewhere."""
    return visible(value) if type(value) is str else value


def _cursor(after: str | None) -> str | None:
    """Where the next page starts, as we wrote it into the link; the beginning for anything else."""
    number = (after or "").partition(":")[0]
    return after if number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS else None


def _change(change: Change) -> dict[str, Any]:
    return {
        "path": _clear(change.path),
        "kind": change.kind.value,
        "before": show_json(change.before),
        "after": show_json(change.after),
    }


def _visible(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _clear(value) if isinstance(value, str) else value for key, value in row.items()}


def _clear(text: str) -> str:
    """Foreign text for one line: everything invisible or deceiving is an escape."""
    return show_json(text)[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86_400)} days"
