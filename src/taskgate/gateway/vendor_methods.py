"""Methods that one family of clients knows and MCP does not: `tasks/create`, `requests/cancel`, `elicitation/create` with a list.

Answered only where the operator switched them on, and only to stateful callers; the last also to stateful servers. Each is a thin
way in to what the gateway does anyway: the same gates, the same tasks, the same limits.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.generations import Generation
from taskgate.core.generations.error_codes import error_object
from taskgate.core.generations.stateful_2025 import speaks_tasks
from taskgate.core.questions import Answer, Question, no_list_form
from taskgate.core.tasks import vendor_face
from taskgate.core.wire import Kind, Message, Raw
from taskgate.gateway.call_tool import call_tool
from taskgate.gateway.context import Context
from taskgate.gateway.elicitation_pages import Asker, CallerAsks, ElicitationPages
from taskgate.gateway.request import Request
from taskgate.gateway.tasks.desk import KEY_META
from taskgate.gateway.url_elicitations import UrlElicitations
from taskgate.ports.upstream import Link
from taskgate.telemetry.logs import log

TASK_LIMIT_CODE: Final = -32087
MAX_LISTED: Final = 10
MAX_DESCRIPTION: Final = 2_000


class VendorMethods:
    def __init__(
        self,
        context: Callable[[], Context],
        urls: UrlElicitations,
        pages: ElicitationPages,
        page_url: Callable[[str], str],
    ) -> None:
        self._context = context
        self._urls = urls
        self._pages = pages
        self._page_url = page_url
        self._background: set[asyncio.Task[None]] = set()
        self.methods: Mapping[str, Callable[[Request], Awaitable[bytes]]] = {
            "tasks/create": self._create_task,
            "requests/cancel": self._cancel_request,
            "elicitation/create": self._create_elicitations,
        }

    async def _create_task(self, request: Request) -> bytes:
        context, params, session = self._context(), request.params, request.session
        assert session is not None
        if not speaks_tasks(session.version):
            raise CallerError("method_not_found", "This revision has no tasks.")
        action, arguments, wished = params.get("action"), params.get("arguments", {}), params.get("id")
        if type(action) is not str or type(arguments) is not dict:
            raise CallerError(
                "invalid_params", 'tasks/create needs "action", the name of a tool, and "arguments", an object.'
            )
        if wished is not None and (type(wished) is not str or not 0 < len(wished) <= 200):
            raise CallerError("invalid_params", '"id" must be a string of 1 to 200 characters.')
        began = context.tasks.store.now_ms()
        task_id = await self._called(context, _tool_call(request, action, arguments, wished))
        task = await context.tasks.desk.find(request, task_id)
        if wished is not None and task.created_ms < began:
            raise _exists(wished)
        return wire.encode(vendor_face.created(task))

    async def _called(self, context: Context, call: Request) -> Any:
        try:
            handle = wire.parse_strictly(await call_tool(context, call))
        except CallerError as problem:
            if problem.error_type == "idempotency_conflict":
                raise _exists("") from None
            raise
        except GatewayFault as problem:
            if problem.error_type == "overloaded":
                problem.data.setdefault("legacy_code", TASK_LIMIT_CODE)
            raise
        return handle.get("taskId")

    async def _cancel_request(self, request: Request) -> bytes:
        session, params = request.session, request.params
        assert session is not None
        wanted = params.get("requestId")
        if type(wanted) not in (str, int):
            raise CallerError("invalid_params", 'requests/cancel needs "requestId", a string or a whole number.')
        key = wire.encode(wanted)
        if key == request.message.id:
            raise CallerError("invalid_params", "A request cannot cancel itself.")
        if not session.cancel(key) and key not in session.cancelled:
            raise CallerError(
                "unknown_request", "No request with this id is being answered: it has ended, or there was none."
            )
        session.remember_cancelled(key)
        return wire.encode({"requestId": wanted, "cancelled": True, "timestamp": _now_ms()})

    async def _create_elicitations(self, request: Request) -> bytes:
        session = request.session
        assert session is not None
        asked = _listed(request.params.get("elicitations"))
        client = session.client_info.get("name")
        asks = f"{client if type(client) is str and client else 'A client'} of {request.caller.principal}"
        return self._pages_for(request.caller.principal, asks, CallerAsks(session), asked)

    def _pages_for(self, principal: str, asks: str, asker: Asker, asked: list[tuple[str, str]]) -> bytes:
        features = self._context().plan.features
        made = []
        for name, description in asked:
            self._urls.count_own(principal, name)
            page = self._pages.open(principal, asks, asker, name, description, features.url_expiry_s)
            made.append({"type": "url", "name": name, "url": self._page_url(page.id), "elicitationId": page.id})
        return wire.encode({"elicitations": made})

    def for_server(self, link: Link, question: Question) -> Answer:
        """The list form as a server's request: pages for the user its conversation is open for, and the news goes back to it."""
        if not self._context().plan.features.vendor_methods:
            return no_list_form()
        try:
            asked = _listed(question.decoded().get("elicitations"))
            if not link.key.principal:
                raise CallerError("invalid_params", "This conversation is shared, so that nothing says who is asked.")
            asker = ServerAsks(link, self._background)
            made = self._pages_for(link.key.principal, f"The server {link.server}", asker, asked)
        except TaskgateError as problem:
            return Answer(error=error_object(problem, Generation.STATEFUL, secrets.token_hex(8)))
        return Answer(result=made)

    async def close(self) -> None:
        """News that nobody has taken yet goes with the conversations."""
        telling = list(self._background)
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)


class ServerAsks:
    """A server's conversation, told in the background because it may be slow to listen."""

    def __init__(self, link: Link, background: set[asyncio.Task[None]]) -> None:
        self._link = link
        self._background = background

    @property
    def gone(self) -> bool:
        return not self._link.alive

    def tell(self, method: str, params: bytes) -> None:
        telling = asyncio.get_running_loop().create_task(self._tell(method, params))
        self._background.add(telling)
        telling.add_done_callback(self._background.discard)

    async def _tell(self, method: str, params: bytes) -> None:
        try:
            await self._link.notify(method, params)
        except TaskgateError as problem:
            log.info("notification not delivered", server=self._link.server, method=method, why=problem.message)


def _listed(given: Any) -> list[tuple[str, str]]:
    if type(given) is not list or not 0 < len(given) <= MAX_LISTED:
        raise CallerError("invalid_params", f'"elicitations" must be an array of 1 to {MAX_LISTED} objects.')
    found = []
    for item in given:
        name = item.get("name") if type(item) is dict else None
        description = item.get("description", "") if type(item) is dict else None
        if type(item) is not dict or item.get("type") != "url" or type(name) is not str or type(description) is not str:
            raise CallerError("invalid_params", 'Each elicitation needs "type": "url", "name" and "description".')
        if not 0 < len(name) <= 200 or len(description) > MAX_DESCRIPTION:
            raise CallerError("invalid_params", f"A name has 1 to 200 characters, a description {MAX_DESCRIPTION}.")
        found.append((name, description))
    return found


def _tool_call(request: Request, action: str, arguments: dict[str, Any], wished: str | None) -> Request:
    params: dict[str, Any] = {"name": action, "arguments": arguments, "task": {}}
    if wished is not None:
        params["_meta"] = {KEY_META: f"vendor:{wished}"}
    members = {key: wire.raw(value) for key, value in params.items()}
    given = request.members().get("arguments")
    if given is not None:
        members["arguments"] = given
    message = Message(Kind.REQUEST, request.message.id, "tools/call", params, Raw(wire.join(members)))
    return Request(message, request.caller, request.outlet, request.session, narrowing=request.narrowing)


def _exists(wished: str) -> CallerError:
    named = f" {wished[:60]!r}" if wished else ""
    return CallerError("task_exists", f"There is a task with the id{named} already.")


def _now_ms() -> int:
    return clock.wall_ms()
