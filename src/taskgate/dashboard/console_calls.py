"""Calls that people make through the API and the console (`/api/v1/tools`, the page Try).

Such a call is an ordinary one: it passes every gate, and is counted and recorded like an agent's. It declares support for tasks,
so a call that exceeds the grace period or requires approval becomes a task. Like every reply in progress it may finish after its
credential has expired, but not after the credential was revoked.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import UNSET

from taskgate import clock
from taskgate.access.authorize import Authorized
from taskgate.access.open_responses import REPLY_AFTER_S, Ended, Hold, OpenResponses
from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import CAPABILITIES, CLIENT_INFO, TASKS_EXTENSION, VERSION, read_envelope
from taskgate.core.identity.access import Access
from taskgate.core.meta import META
from taskgate.core.meta_keys import TASK_META
from taskgate.core.wire import Kind, Message, Raw
from taskgate.dashboard.ports import Requests
from taskgate.dashboard.routes import OBJECT, TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.gateway.requests.request import Request
from taskgate.ports.cancel_note import CancelNote
from taskgate.replies.calls import CallResult, Tools

MAX_PAGES: Final = 20
_CALL: Final = closed_object(("tool",), tool=TEXT, arguments=OBJECT, scope=TEXT)
_REVISION: Final = "2026-07-28"
_CLIENT: Final = {"name": "taskgate-console", "version": "1"}


class Outcome:
    """Receives the reply of a call made by a page."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def send(self, message: bytes) -> None:
        """Ignore notifications before the reply; pages do not show them."""

    def hold_open(self) -> None:
        """Do nothing: the page waits for the reply."""

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


class CallInProgress:
    """A request of the console that has no reply yet."""

    def __init__(self, requests: Requests, authorized: Authorized, request: Request, outcome: Outcome) -> None:
        self._requests = requests
        self._authorized = authorized
        self._request = request
        self._outcome = outcome
        self._began = clock.monotonic()
        self._hold: Hold | None = None
        self.running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Continues after the reply if the call became a task."""
        self._request.delivery.use_inbox()
        try:
            reply = await self._requests.answer(self._request)
            if reply is not None:
                await self._outcome.finish(reply.status, reply.body)
                self._request.delivery.delivered(True)
        finally:
            if not self._outcome.reply.done():
                self._outcome.reply.cancel()

    def watch(self, responses: OpenResponses, now: float) -> None:
        if self._hold is None and now - self._began >= REPLY_AFTER_S and not self._outcome.reply.done():
            self._hold = responses.hold(self._authorized, self._withdraw, survives_expiry=True)

    def _withdraw(self, ended: Ended) -> None:
        """The credential was revoked: cancel the call and return no result."""
        request = self._request
        executed = Executed.MAYBE if request.delivery.sent else Executed.NO
        problem = CallerError(ended.reason.value, ended.text, executed=executed)
        reply = self._requests.failure(problem, request.message.id, Generation.STATELESS, request.message)
        if not self._outcome.reply.done():
            self._outcome.reply.set_result(reply.body)
            self.running.cancel(CancelNote(ended.text))

    def replied(self) -> None:
        if self._hold is not None:
            self._hold.release()


class ConsoleCalls:
    """Requests on behalf of a logged-in person or the holder of a token."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._running: set[asyncio.Task[None]] = set()
        self._in_progress: set[CallInProgress] = set()

    @property
    def in_progress(self) -> Iterable[CallInProgress]:
        return tuple(self._in_progress)

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/tools",
                Access.CALL,
                self._tools,
                "Tools that you can call in a scope.",
                query={"scope": "name of the scope; default: the default scope"},
                command="taskgate tools",
                scope=lambda request: request.query.get("scope"),
                answer=Tools,
            ),
            post(
                "/tools/call",
                Access.CALL,
                self._call,
                "Call a tool in a scope, as yourself.",
                _CALL,
                command="taskgate call TOOL",
                scope=lambda request: _text_in(request.json(), "scope"),
                answer=CallResult,
            ),
        )

    async def _ask(
        self, authorized: Authorized, method: str, params: Mapping[str, Any], *, rerun_of: str = ""
    ) -> dict[str, Any]:
        """Send one request and return its result or error, as a caller of `/mcp` would receive it."""
        meta: dict[str, Any] = {
            VERSION: _REVISION,
            CAPABILITIES: {"extensions": {TASKS_EXTENSION: {}}},
            CLIENT_INFO: _CLIENT,
        }
        if rerun_of:
            meta[TASK_META] = True
        whole = {**params, META: meta}
        message = Message(
            Kind.REQUEST, wire.encode(secrets.token_hex(8)), method, whole, raw_params=Raw(wire.encode(whole))
        )
        outcome = Outcome()
        request = Request.opened(message, authorized.caller, outcome, envelope=read_envelope(whole), rerun_of=rerun_of)
        call = CallInProgress(self._requests, authorized, request, outcome)
        self._running.add(call.running)
        call.running.add_done_callback(self._running.discard)
        self._in_progress.add(call)
        try:
            found: dict[str, Any] = wire.parse_strictly(await outcome.reply)
        finally:
            self._in_progress.discard(call)
            call.replied()
        return found

    async def close(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def tools(self, authorized: Authorized) -> list[dict[str, Any]]:
        """All pages of `tools/list` in the scope of the credential."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            result = (await self._ask(authorized, "tools/list", params)).get("result", {})
            found += [tool for tool in result.get("tools", ()) if type(tool) is dict and type(tool.get("name")) is str]
            if not result.get("nextCursor"):
                break
            params = {"cursor": result["nextCursor"]}
        return found

    async def call(
        self, authorized: Authorized, tool: str, arguments: Mapping[str, Any], *, rerun_of: str = ""
    ) -> CallResult:
        """`rerun_of`: the task that the call repeats. It becomes a task itself, linked to that one."""
        params = {"name": tool, "arguments": dict(arguments)}
        reply = await self._ask(authorized, "tools/call", params, rerun_of=rerun_of)
        return CallResult(
            result=reply.get("result", UNSET), error=reply.get("error", UNSET), task_id=_task_of(reply.get("result"))
        )

    async def _tools(self, visit: Visit) -> Answer:
        return json_answer(Tools(scope=visit.authorized.scope, tools=await self.tools(visit.authorized)))

    async def _call(self, visit: Visit) -> Answer:
        body = visit.request.json()
        tool, arguments, scope = body.get("tool"), body.get("arguments", {}), body.get("scope")
        if set(body) - set(_CALL["properties"]) or type(tool) is not str or type(arguments) is not dict:
            return problem(400, 'Send "tool" (a string) and optionally "arguments" (an object) and "scope" (a string).')
        if scope is not None and type(scope) is not str:
            return problem(400, '"scope" must be a string.')
        return json_answer(await self.call(visit.authorized, tool, arguments))


def _text_in(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if type(found) is str else None


def _task_of(result: Any) -> str | None:
    """The id of the task that a call became, or None."""
    if type(result) is not dict or result.get("resultType") != "task":
        return None
    found = result.get("taskId")
    return found if type(found) is str else None
