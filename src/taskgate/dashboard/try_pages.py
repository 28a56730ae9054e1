"""The page to try a tool on: pick one of a scope, fill in its form, and see the answer or the task that the call became."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.identity import Permission
from taskgate.dashboard.console_calls import ConsoleCalls, shown_reply, task_of
from taskgate.dashboard.forms import WHOLE, BadForm, filled_in, form_of
from taskgate.dashboard.frame import Frame, clear
from taskgate.dashboard.inbox_pages import form_values
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.web import Answer, redirect

LONGEST_TEXT: Final = 300
_LIKE: Final = {"fast": ("list_files", "read_file"), "slow": ("slow_report",), "dangerous": ("delete_file",)}
"""Tools of the demo server that the first visit proposes, by what they show."""


class TryPages:
    def __init__(self, records: Records, frame: Frame, calls: ConsoleCalls) -> None:
        self._records = records
        self._frame = frame
        self._calls = calls

    def routes(self) -> tuple[Route, ...]:
        return (page_route("/try", Permission.ACT, self._show), form_route("/try", Permission.ACT, self._call))

    async def _show(self, visit: Visit) -> Answer:
        try:
            scope = self._calls.scope_of(visit.who, visit.asked("scope"))
        except ValueError as problem:
            return self._frame.message(visit.request, visit.who, 404, "No such scope", clear(problem))
        tools = await self._calls.tools(visit.who, scope)
        asked = visit.asked("tool") or _proposed(tools, visit.asked("like"))
        return await self._page(visit, scope, tools, next((tool for tool in tools if tool["name"] == asked), None))

    async def _page(
        self,
        visit: Visit,
        scope: str,
        tools: list[dict[str, Any]],
        tool: dict[str, Any] | None,
        *,
        reply: dict[str, Any] | None = None,
        sent: str = "",
        note: str | None = None,
    ) -> Answer:
        command = f"taskgate call {tool['name']}" if tool is not None else "taskgate call"
        return await self._frame.page(
            visit,
            "try",
            "try.html",
            status=400 if note is not None else 200,
            note=note,
            note_kind="bad",
            scope=scope,
            scopes=sorted(self._records.scopes(visit.who)),
            tools=[(tool["name"], _text(tool)) for tool in tools],
            tool={"name": tool["name"], "text": _text(tool)} if tool is not None else None,
            form=form_of(tool.get("inputSchema")) if tool is not None else None,
            reply=reply,
            sent=sent,
            command=clear(command),
        )

    async def _call(self, visit: Visit) -> Answer:
        sent = form_values(visit)
        try:
            scope = self._calls.scope_of(visit.who, sent.get("scope", [""])[0])
        except ValueError as problem:
            return self._frame.message(visit.request, visit.who, 404, "No such scope", clear(problem))
        tools = await self._calls.tools(visit.who, scope)
        wanted = sent.get("tool", [""])[0]
        tool = next((tool for tool in tools if tool["name"] == wanted), None)
        if tool is None:
            return await self._page(visit, scope, tools, None, note="There is no such tool in this scope any more.")
        whole = sent.get(WHOLE, [""])[0]
        try:
            arguments = filled_in(tool.get("inputSchema"), sent)
        except BadForm as problem:
            return await self._page(visit, scope, tools, tool, note=clear(problem), sent=whole)
        reply = await self._calls.call(visit.who, scope, wanted, arguments)
        task_id = task_of(reply)
        if task_id is not None:
            return redirect(f"/tasks/{task_id}")
        return await self._page(visit, scope, tools, tool, reply=shown_reply(reply), sent=whole)


def _text(tool: dict[str, Any]) -> str:
    said = tool.get("description")
    return clear(said[:LONGEST_TEXT]) if type(said) is str else ""


def _proposed(tools: list[dict[str, Any]], like: str | None) -> str | None:
    wanted = _LIKE.get(like or "", ())
    return next((tool["name"] for tool in tools for name in wanted if tool["name"].endswith(name)), None)
