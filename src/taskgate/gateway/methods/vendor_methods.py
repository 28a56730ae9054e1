"""Vendor methods that are not part of MCP: `tasks/create`, `requests/cancel`, and `elicitation/create` with a list.

A task of `tasks/create` has the id that its caller chose, and the form that these clients expect: integers for times, and its
outcome inline.

They are available only if the operator enables them, and only to stateful callers; the last one also to stateful servers. Each
uses the same gates, tasks and limits as the methods of MCP.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations.stateful import supports_tasks
from taskgate.core.ids import is_task_id
from taskgate.core.meta_keys import KEY_META
from taskgate.core.tasks.projections_vendor import vendor_cancelled, vendor_created, vendor_result, vendor_task
from taskgate.core.tasks.proof import about
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Kind, Members, Message, Raw
from taskgate.gateway.calls.call_tool import ToolCalls
from taskgate.gateway.questions.elicitation_pages import CallerReceiver
from taskgate.gateway.questions.listed_elicitations import OwnElicitations, listed
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.cancel_note import CancelNote
from taskgate.store.operations.task_queries import FindTask, TaskOfKey

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
        if not supports_tasks(session.version):
            raise CallerError("method_not_found", "This revision has no tasks.")
        action, arguments, requested_id = params.get("action"), params.get("arguments", {}), params.get("id")
        if type(action) is not str or type(arguments) is not dict:
            raise CallerError(
                "invalid_params", 'tasks/create needs "action", the name of a tool, and "arguments", an object.'
            )
        if requested_id is not None and (type(requested_id) is not str or not 0 < len(requested_id) <= 200):
            raise CallerError("invalid_params", '"id" must be a string of 1 to 200 characters.')
        began = self._tasks.store.now_ms()
        vendor_id = requested_id if requested_id is not None else f"task-{secrets.token_hex(12)}"
        task_id = await self._called(_tool_call(request, action, arguments, vendor_id))
        task = await self._tasks.records.find(request, task_id)
        if requested_id is not None and task.created_ms < began:
            raise about(task, _exists(requested_id))
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
        task = await self._vendor_task(request)
        if task is None:
            return await methods.get(request)
        await methods.get(_with_task_id(request, task.id))
        task = await records.find(request, task.id)
        return wire.encode(vendor_task(task, await records.result_bytes(task)))

    async def _result_of_task(self, request: Request) -> bytes:
        methods = self._tasks.methods
        task = await self._vendor_task(request)
        if self._tasks.plan.value.features.result_not_ready:
            self._refuse_unfinished(task or await self._own(request))
        if task is None:
            return await methods.result(request)
        result = await methods.result(_with_task_id(request, task.id))
        return vendor_result(await self._tasks.records.find(request, task.id), result)

    async def _own(self, request: Request) -> Task | None:
        """The gateway's task that a request names; None for a task that a server lists."""
        task_id = request.params.get("taskId")
        known = type(task_id) is str and is_task_id(task_id)
        return await self._tasks.records.find(request, task_id) if known else None

    def _refuse_unfinished(self, task: Task | None) -> None:
        if task is not None and not task.state.is_terminal:
            text = "The task has not ended, so it has no result yet. tasks/get shows its state."
            raise about(task, CallerError("result_not_ready", text))

    async def _cancel_task(self, request: Request) -> bytes:
        methods = self._tasks.methods
        task = await self._vendor_task(request)
        if task is None:
            return await methods.cancel(request)
        await methods.cancel(_with_task_id(request, task.id))
        return wire.encode(vendor_cancelled(await self._tasks.records.find(request, task.id)))

    async def _list_tasks(self, request: Request) -> bytes:
        """MCP's list, with vendor tasks in the form of their clients."""
        listed = wire.parse_strictly(await self._tasks.methods.list(request))
        store = self._tasks.store
        for place, row in enumerate(listed["tasks"]):
            task = await store.ask(FindTask(row["taskId"])) if is_task_id(row["taskId"]) else None
            if task is not None and task.vendor_id is not None:
                listed["tasks"][place] = vendor_task(task, None)
        return wire.encode(listed)

    async def _vendor_task(self, request: Request) -> Task | None:
        """The task that `tasks/create` made under the id in this request."""
        vendor_id = request.params.get("taskId")
        if type(vendor_id) is not str:
            return None
        key = _key(request, vendor_id)
        found = await self._tasks.store.ask(TaskOfKey(request.caller.principal, key))
        return await self._tasks.records.find(request, found) if found is not None else None

    async def _cancel_request(self, request: Request) -> bytes:
        session, params = request.session, request.params
        assert session is not None
        request_id = params.get("requestId")
        if type(request_id) not in (str, int):
            raise CallerError("invalid_params", 'requests/cancel needs "requestId", a string or a whole number.')
        key = wire.encode(request_id)
        if key == request.message.id:
            raise CallerError("invalid_params", "A request cannot cancel itself.")
        if not session.cancel(key, CancelNote.read(params)) and key not in session.cancelled:
            raise CallerError(
                "unknown_request", "No request with this id is being answered: it has ended, or there was none."
            )
        session.remember_cancelled(key)
        return wire.encode({"requestId": request_id, "cancelled": True, "timestamp": _now_ms()})

    async def _create_elicitations(self, request: Request) -> bytes:
        session = request.session
        assert session is not None
        elicitations = listed(request.params.get("elicitations"))
        client = session.client_info.get("name")
        requester = f"{client if type(client) is str and client else 'A client'} of {request.caller.principal}"
        return self._elicitations.open(request.caller.principal, requester, CallerReceiver(session), elicitations)


def _tool_call(request: Request, action: str, arguments: dict[str, Any], vendor_id: str) -> Request:
    params: dict[str, Any] = {"name": action, "arguments": arguments, "task": {}}
    params["_meta"] = {KEY_META: _key(request, vendor_id)}
    members = {key: wire.raw(value) for key, value in params.items()}
    sent = request.members().get("arguments")
    if sent is not None:
        members["arguments"] = sent
    return _inner(request, "tools/call", params, members, vendor_id=vendor_id)


def _with_task_id(request: Request, task_id: str) -> Request:
    """The same request with the task's own id."""
    params = {**request.params, "taskId": task_id}
    return _inner(request, request.message.method, params, {**request.members(), "taskId": wire.raw(task_id)})


def _inner(
    request: Request, method: str, params: dict[str, Any], members: Members, vendor_id: str | None = None
) -> Request:
    message = Message(Kind.REQUEST, request.message.id, method, params, raw_params=Raw(wire.join(members)))
    return Request.opened(
        message,
        request.caller,
        request.delivery.outlet,
        request.session,
        narrowing=request.narrowing,
        vendor_id=vendor_id,
    )


def _key(request: Request, vendor_id: str) -> str:
    """The idempotency key for an id that a caller chose. It is specific to the caller."""
    caller = hashlib.sha256(request.caller_key.encode()).hexdigest()[:16]
    return f"vendor:{caller}:{vendor_id[:200]}"


def _exists(requested_id: str) -> CallerError:
    named = f" {requested_id[:60]!r}" if requested_id else ""
    return CallerError("task_exists", f"There is a task with the id{named} already.")


def _now_ms() -> int:
    return clock.wall_ms()
