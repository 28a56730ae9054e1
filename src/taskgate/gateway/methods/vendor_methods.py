"""Methods that one family of clients knows and MCP does not: `tasks/create`, `requests/cancel`, `elicitation/create` with a list.

A task that `tasks/create` made is known by the id its caller gave, and looks to it as these clients expect: whole numbers for
times, its outcome inline.

Answered only where the operator switched them on, and only to stateful callers; the last also to stateful servers. Each is a thin
way in to what the gateway does anyway: the same gates, the same tasks, the same limits.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.delivery import KEY_META
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations.stateful import speaks_tasks
from taskgate.core.ids import is_task_id
from taskgate.core.tasks.projections_vendor import vendor_cancelled, vendor_created, vendor_result, vendor_task
from taskgate.core.tasks.proof import about
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Kind, Members, Message, Raw
from taskgate.gateway.calls.call_tool import ToolCalls
from taskgate.gateway.questions.elicitations import CallerAsks, OwnElicitations, listed
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.outlet import CancelNote

TASK_LIMIT_CODE: Final = -32087


class VendorMethods:
    def __init__(self, tool_calls: ToolCalls, tasks: TaskEngine, elicitations: OwnElicitations) -> None:
        self._tool_calls = tool_calls
        self._tasks = tasks
        self._elicitations = elicitations
        self.methods: Mapping[str, Callable[[Request], Awaitable[bytes]]] = {
            "tasks/create": self._create_task,
            "tasks/get": self._get_task,
            "tasks/result": self._result_of_task,
            "tasks/cancel": self._cancel_task,
            "tasks/list": self._list_tasks,
            "requests/cancel": self._cancel_request,
            "elicitation/create": self._create_elicitations,
        }

    async def _create_task(self, request: Request) -> bytes:
        params, session = request.params, request.session
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
        began = self._tasks.store.now_ms()
        given = wished if wished is not None else f"task-{secrets.token_hex(12)}"
        task_id = await self._called(_tool_call(request, action, arguments, given))
        task = await self._tasks.records.find(request, task_id)
        if wished is not None and task.created_ms < began:
            raise about(task, _exists(wished))
        return wire.encode(vendor_created(task))

    async def _called(self, call: Request) -> Any:
        try:
            handle = wire.parse_strictly(await self._tool_calls.call(call))
        except CallerError as problem:
            if problem.error_type == "idempotency_conflict":
                raise _exists("") from None
            raise
        except GatewayFault as problem:
            if problem.error_type == "overloaded":
                problem.data.setdefault("legacy_code", TASK_LIMIT_CODE)
            raise
        return handle.get("taskId")

    async def _get_task(self, request: Request) -> bytes:
        methods, records = self._tasks.methods, self._tasks.records
        task = await self._made_here(request)
        if task is None:
            return await methods.get(request)
        await methods.get(_about(request, task.id))
        task = await records.find(request, task.id)
        return wire.encode(vendor_task(task, await records.result_bytes(task)))

    async def _result_of_task(self, request: Request) -> bytes:
        methods = self._tasks.methods
        task = await self._made_here(request)
        if self._tasks.plan.value.features.result_not_ready:
            self._refuse_unfinished(task or await self._own(request))
        if task is None:
            return await methods.result(request)
        result = await methods.result(_about(request, task.id))
        return vendor_result(await self._tasks.records.find(request, task.id), result)

    async def _own(self, request: Request) -> Task | None:
        """The task of this gateway that a request names; None for one that its server lists."""
        asked = request.params.get("taskId")
        return await self._tasks.records.find(request, asked) if type(asked) is str and is_task_id(asked) else None

    def _refuse_unfinished(self, task: Task | None) -> None:
        if task is not None and not task.state.is_terminal:
            text = "The task has not ended, so it has no result yet. tasks/get shows its state."
            raise about(task, CallerError("result_not_ready", text))

    async def _cancel_task(self, request: Request) -> bytes:
        methods = self._tasks.methods
        task = await self._made_here(request)
        if task is None:
            return await methods.cancel(request)
        await methods.cancel(_about(request, task.id))
        return wire.encode(vendor_cancelled(await self._tasks.records.find(request, task.id)))

    async def _list_tasks(self, request: Request) -> bytes:
        """MCP's list, with the rows of tasks that were made here in the form of their callers."""
        listed = wire.parse_strictly(await self._tasks.methods.list(request))
        store = self._tasks.store
        for place, row in enumerate(listed["tasks"]):
            task = await store.get(row["taskId"]) if is_task_id(row["taskId"]) else None
            if task is not None and task.vendor_id is not None:
                listed["tasks"][place] = vendor_task(task, None)
        return wire.encode(listed)

    async def _made_here(self, request: Request) -> Task | None:
        """The task that `tasks/create` made under the id that this caller gave or was given."""
        asked = request.params.get("taskId")
        if type(asked) is not str:
            return None
        key = _key(request, asked)
        found = await self._tasks.store.task_of_key(request.caller.principal, key)
        return await self._tasks.records.find(request, found) if found is not None else None

    async def _cancel_request(self, request: Request) -> bytes:
        session, params = request.session, request.params
        assert session is not None
        wanted = params.get("requestId")
        if type(wanted) not in (str, int):
            raise CallerError("invalid_params", 'requests/cancel needs "requestId", a string or a whole number.')
        key = wire.encode(wanted)
        if key == request.message.id:
            raise CallerError("invalid_params", "A request cannot cancel itself.")
        if not session.cancel(key, CancelNote.read(params)) and key not in session.cancelled:
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


def _tool_call(request: Request, action: str, arguments: dict[str, Any], given: str) -> Request:
    params: dict[str, Any] = {"name": action, "arguments": arguments, "task": {}}
    params["_meta"] = {KEY_META: _key(request, given)}
    members = {key: wire.raw(value) for key, value in params.items()}
    sent = request.members().get("arguments")
    if sent is not None:
        members["arguments"] = sent
    return _inner(request, "tools/call", params, members, vendor_id=given)


def _about(request: Request, task_id: str) -> Request:
    """The same request about the task's own id."""
    params = {**request.params, "taskId": task_id}
    return _inner(request, request.message.method, params, {**request.members(), "taskId": wire.raw(task_id)})


def _inner(
    request: Request, method: str, params: dict[str, Any], members: Members, vendor_id: str | None = None
) -> Request:
    message = Message(Kind.REQUEST, request.message.id, method, params, Raw(wire.join(members)))
    return Request.opened(
        message,
        request.caller,
        request.delivery.outlet,
        request.session,
        narrowing=request.narrowing,
        vendor_id=vendor_id,
    )


def _key(request: Request, given: str) -> str:
    """Ids that callers choose are theirs alone: an idempotency key of their own keeps each."""
    whose = hashlib.sha256(request.caller_key.encode()).hexdigest()[:16]
    return f"vendor:{whose}:{given[:200]}"


def _exists(wished: str) -> CallerError:
    named = f" {wished[:60]!r}" if wished else ""
    return CallerError("task_exists", f"There is a task with the id{named} already.")


def _now_ms() -> int:
    return clock.wall_ms()
