"""Methods that one family of clients knows and MCP does not: `tasks/create`, `requests/cancel`, `elicitation/create` with a list.

Answered only where the operator switched them on, and only to stateful callers; the last also to stateful servers. Each is a thin
way in to what the gateway does anyway: the same gates, the same tasks, the same limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations.stateful_2025 import speaks_tasks
from taskgate.core.tasks import vendor_face
from taskgate.core.wire import Kind, Message, Raw
from taskgate.gateway.call_tool import call_tool
from taskgate.gateway.context import Context
from taskgate.gateway.elicitation_pages import CallerAsks
from taskgate.gateway.request import Request
from taskgate.gateway.server_elicitations import OwnElicitations, listed
from taskgate.gateway.tasks.desk import KEY_META

TASK_LIMIT_CODE: Final = -32087


class VendorMethods:
    def __init__(self, context: Context, elicitations: OwnElicitations) -> None:
        self._context = context
        self._elicitations = elicitations
        self.methods: Mapping[str, Callable[[Request], Awaitable[bytes]]] = {
            "tasks/create": self._create_task,
            "requests/cancel": self._cancel_request,
            "elicitation/create": self._create_elicitations,
        }

    async def _create_task(self, request: Request) -> bytes:
        context, params, session = self._context, request.params, request.session
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
        asked = listed(request.params.get("elicitations"))
        client = session.client_info.get("name")
        asks = f"{client if type(client) is str and client else 'A client'} of {request.caller.principal}"
        return self._elicitations.open(request.caller.principal, asks, CallerAsks(session), asked)


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
