"""The page Try: choose a tool of a scope, fill in a form generated from its schema, and call it as yourself."""

from __future__ import annotations

import shlex
from typing import Any, Final

import msgspec

from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity.access import Access
from taskgate.dashboard.console_calls import ConsoleCalls
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.paging import paged
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.schema_forms import WHOLE, BadForm, filled_in, form_of, form_values
from taskgate.dashboard.text_filters import clear
from taskgate.dashboard.web import Answer, redirect
from taskgate.replies.calls import CallResult

REPLY_SHOWN: Final = 20_000
LONGEST_TEXT: Final = 300
_LIKE: Final = {"fast": ("list_files", "read_file"), "slow": ("slow_report",), "dangerous": ("delete_file",)}
"""Tools of the demo server that the welcome text links to, by what they demonstrate."""


class TryPages(msgspec.Struct, eq=False):
    _records: Records
    _frame: Frame
    _calls: ConsoleCalls

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route(
                "/try",
                Access.CALL,
                self._show,
                scope=lambda request: request.query.get("scope"),
                page=Page("try", "Try", "/api/v1/tools", menu=13),
            ),
            form_route("/try", Access.CALL, self._call, scope=lambda request: request.form().get("scope")),
        )

    async def _show(self, visit: Visit) -> Answer:
        scope = visit.authorized.scope
        tools = await self._calls.tools(visit.authorized)
        name = visit.parameter("tool") or _proposed(tools, visit.parameter("like"))
        return await self._page(visit, scope, tools, next((tool for tool in tools if tool["name"] == name), None))

    async def _page(
        self,
        visit: Visit,
        scope: str,
        tools: list[dict[str, Any]],
        tool: dict[str, Any] | None,
        *,
        reply: CallResult | None = None,
        sent: str = "",
        note: str | None = None,
    ) -> Answer:
        text = visit.parameter("text")
        command = f"taskgate call {shlex.quote(tool['name'])}" if tool is not None else "taskgate tools"
        return await self._frame.page(
            visit,
            "try",
            "try.html",
            status=400 if note is not None else 200,
            note=note,
            note_kind="bad",
            scope=scope,
            scopes=sorted(self._records.scopes(visit.user)),
            page=paged(
                [(tool["name"], _text(tool)) for tool in tools if _matches(tool, text)],
                visit.parameter("page"),
                "/try",
                {"scope": scope, "text": text},
            ),
            text=text or "",
            every=len(tools),
            tool={"name": tool["name"], "text": _text(tool)} if tool is not None else None,
            form=form_of(tool.get("inputSchema")) if tool is not None else None,
            reply=excerpt(show_json(reply.received), REPLY_SHOWN) if reply is not None else None,
            failed=reply is not None and reply.is_error,
            sent=sent,
            command=clear(command),
        )

    async def _call(self, visit: Visit) -> Answer:
        sent, scope = form_values(visit), visit.authorized.scope
        tools = await self._calls.tools(visit.authorized)
        requested = sent.get("tool", [""])[0]
        tool = next((tool for tool in tools if tool["name"] == requested), None)
        if tool is None:
            return await self._page(
                visit, scope, tools, None, note="This tool is no longer in the scope. Choose another one."
            )
        whole = sent.get(WHOLE, [""])[0]
        try:
            arguments = filled_in(tool.get("inputSchema"), sent)
        except BadForm as problem:
            return await self._page(visit, scope, tools, tool, note=clear(problem), sent=whole)
        reply = await self._calls.call(visit.authorized, requested, arguments)
        if reply.task_id is not None:
            return redirect(f"/tasks/{reply.task_id}")
        return await self._page(visit, scope, tools, tool, reply=reply, sent=whole)


def _text(tool: dict[str, Any]) -> str:
    text = tool.get("description")
    return clear(text[:LONGEST_TEXT]) if type(text) is str else ""


def _matches(tool: dict[str, Any], text: str | None) -> bool:
    """Whether every word is in the name, which contains the server's, the title or the description."""
    if text is None:
        return True
    searched = " ".join(str(tool.get(key) or "") for key in ("name", "title", "description")).casefold()
    return all(word in searched for word in text.casefold().split())


def _proposed(tools: list[dict[str, Any]], like: str | None) -> str | None:
    requested = _LIKE.get(like or "", ())
    return next((tool["name"] for tool in tools for name in requested if tool["name"].endswith(name)), None)
