"""The page to try a tool on: pick one of a scope, fill in its form, and see the answer or the task that the call became."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.access import Access
from taskgate.core.generations import CAPABILITIES, CLIENT_INFO, TASKS_EXTENSION, VERSION, read_envelope
from taskgate.core.governance.card import excerpt, show_json
from taskgate.core.identity import Caller
from taskgate.core.wire import META, Kind, Message, Raw
from taskgate.dashboard.frame import Frame, clear
from taskgate.dashboard.inbox_pages import WHOLE, BadForm, filled_in, form_of, form_values
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import OBJECT, TEXT, Route, Visit, closed_object, form_route, get, page_route, post
from taskgate.dashboard.web import Answer, json_answer, problem, redirect
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.requests.request import Request

# Try a tool: pick one, fill in a form made from its schema, call it as yourself in any scope, and watch what becomes of
# it.
#
# The call is an ordinary one: it passes every gate, is counted and written down like an agent's. It declares tasks, so
# one that takes longer than the grace period, or needs a person, becomes a task, and the page leads there.

MOST_PAGES: Final = 20
FIRST_LOOK: Final = 20_000
_CALL: Final = closed_object(("tool",), tool=TEXT, arguments=OBJECT, scope=TEXT)
_REVISION: Final = "2026-07-28"
_CLIENT: Final = {"name": "taskgate-console", "version": "1"}


class Outcome:
    """Where the reply of a call that a page makes arrives."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def send(self, message: bytes) -> None:
        """Notifications before the reply are not shown."""

    def hold_open(self) -> None:
        """The page waits anyway."""

    async def finish(self, _status: int, body: bytes) -> None:
        if not self.reply.done():
            self.reply.set_result(body)

    @property
    def can_send(self) -> bool:
        return not self.reply.done()

    @property
    def still_there(self) -> bool:
        return True

    @property
    def is_read(self) -> bool:
        return self.still_there


class ConsoleCalls:
    """Requests that the console makes on behalf of the person who looks at it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._running: set[asyncio.Task[None]] = set()

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/tools",
                Access.CALL,
                self._tools,
                "What can be called in a scope.",
                query={"scope": "which; the default one"},
                scope=lambda request: request.query.get("scope"),
            ),
            post(
                "/tools/call",
                Access.CALL,
                self._call,
                "Call a tool as yourself in a scope.",
                _CALL,
                scope=lambda request: _text_in(request.json(), "scope"),
            ),
        )

    async def ask(self, caller: Caller, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """One request; its result or its error, as it would have gone to a caller."""
        meta = {VERSION: _REVISION, CAPABILITIES: {"extensions": {TASKS_EXTENSION: {}}}, CLIENT_INFO: _CLIENT}
        whole = {**params, META: meta}
        message = Message(Kind.REQUEST, wire.encode(secrets.token_hex(8)), method, whole, Raw(wire.encode(whole)))
        outcome = Outcome()
        running = asyncio.create_task(
            self._run(Request.opened(message, caller, outcome, envelope=read_envelope(whole)), outcome)
        )
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        found: dict[str, Any] = wire.parse_strictly(await outcome.reply)
        return found

    async def _run(self, request: Request, outcome: Outcome) -> None:
        """Goes on after the reply, where the call became a task."""
        request.delivery.use_inbox()
        try:
            reply = await self._gateway.answer(request)
            if reply is not None:
                await outcome.finish(reply.status, reply.body)
                request.delivery.settled(True)
        finally:
            if not outcome.reply.done():
                outcome.reply.cancel()

    async def close(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def tools(self, caller: Caller) -> list[dict[str, Any]]:
        """What `tools/list` shows there, page by page."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            result = (await self.ask(caller, "tools/list", params)).get("result", {})
            found += [tool for tool in result.get("tools", ()) if type(tool) is dict and type(tool.get("name")) is str]
            if not result.get("nextCursor"):
                break
            params = {"cursor": result["nextCursor"]}
        return found

    async def call(self, caller: Caller, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return await self.ask(caller, "tools/call", {"name": tool, "arguments": dict(arguments)})

    async def _tools(self, visit: Visit) -> Answer:
        caller = visit.authorized.caller
        return json_answer({"scope": caller.scope, "tools": await self.tools(caller)})

    async def _call(self, visit: Visit) -> Answer:
        said = visit.request.json()
        tool, arguments, scope = said.get("tool"), said.get("arguments", {}), said.get("scope")
        if set(said) - set(_CALL["properties"]) or type(tool) is not str or type(arguments) is not dict:
            return problem(400, 'Say "tool", and perhaps "arguments" (an object) and "scope".')
        if scope is not None and type(scope) is not str:
            return problem(400, '"scope" must be a string.')
        reply = await self.call(visit.authorized.caller, tool, arguments)
        return json_answer(
            {**{key: reply[key] for key in ("result", "error") if key in reply}, "task_id": task_of(reply)}
        )


def _text_in(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if type(found) is str else None


def task_of(reply: Mapping[str, Any]) -> str | None:
    """The id of the task that a call became."""
    result = reply.get("result")
    if type(result) is not dict or result.get("resultType") != "task":
        return None
    found = result.get("taskId")
    return found if type(found) is str else None


def shown_reply(reply: Mapping[str, Any], limit: int = FIRST_LOOK) -> dict[str, Any]:
    """The answer for a page."""
    is_error = "error" in reply or (type(reply.get("result")) is dict and reply["result"].get("isError") is True)
    text = excerpt(show_json(reply.get("error", reply.get("result"))), limit)
    return {"is_error": is_error, "text": text.text, "left_out": text.left_out}


LONGEST_TEXT: Final = 300
_LIKE: Final = {"fast": ("list_files", "read_file"), "slow": ("slow_report",), "dangerous": ("delete_file",)}
"""Tools of the demo server that the first visit proposes, by what they show."""


class TryPages:
    def __init__(self, records: Records, frame: Frame, calls: ConsoleCalls) -> None:
        self._records = records
        self._frame = frame
        self._calls = calls

    def routes(self) -> tuple[Route, ...]:
        return (
            page_route("/try", Access.CALL, self._show, scope=lambda request: request.query.get("scope")),
            form_route("/try", Access.CALL, self._call, scope=lambda request: request.form().get("scope")),
        )

    async def _show(self, visit: Visit) -> Answer:
        scope = visit.authorized.scope
        tools = await self._calls.tools(visit.authorized.caller)
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
        sent, scope = form_values(visit), visit.authorized.scope
        tools = await self._calls.tools(visit.authorized.caller)
        wanted = sent.get("tool", [""])[0]
        tool = next((tool for tool in tools if tool["name"] == wanted), None)
        if tool is None:
            return await self._page(visit, scope, tools, None, note="There is no such tool in this scope any more.")
        whole = sent.get(WHOLE, [""])[0]
        try:
            arguments = filled_in(tool.get("inputSchema"), sent)
        except BadForm as problem:
            return await self._page(visit, scope, tools, tool, note=clear(problem), sent=whole)
        reply = await self._calls.call(visit.authorized.caller, wanted, arguments)
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
