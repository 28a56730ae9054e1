"""`tools/call`: find the tool in the caller's view, apply the gates, and forward the call to its server.

A call that needs more than forwarding (approval, task metadata, an idempotency key) is answered by `durable_calls`. Any other
call is forwarded directly and becomes a task only if it takes longer than its caller waits. Hidden, denied and unknown names get
the same error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from taskgate.core.catalog.entry import MARK
from taskgate.core.delivery import KEY_META
from taskgate.core.errors import CallerError, Executed, TaskgateError, UpstreamError
from taskgate.core.scoping.scope import ScopeMode
from taskgate.gateway.calls.durable_calls import TASK_META, DurableCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.calls.tool_results import as_tool_result, upstream_task
from taskgate.gateway.catalog.validate import ArgumentChecks, Validation
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.call_log import CallLog
from taskgate.gateway.requests.caller_keys import fair_key
from taskgate.gateway.requests.heartbeat import Heartbeat
from taskgate.gateway.requests.large_results import looked_at
from taskgate.gateway.requests.request import Request, next_step
from taskgate.gateway.requests.server_queue import ServerQueue
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.promotion import Promotion
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.gateway.tasks.task_results import is_error
from taskgate.mcp.param_headers import header_values
from taskgate.ports.credentials import AccountNeeded
from taskgate.ports.upstream import RelayedError, Upstream, UpstreamCall
from taskgate.turns import LARGE_BYTES

NotListed = Callable[[Request], Awaitable[bytes]]
_SPECIAL: Final = frozenset({"task", "requestState"})
"""Params without any of these ask for nothing but the call."""
_SPECIAL_META: Final = frozenset({TASK_META, KEY_META})
"""Nor does `_meta` without any of these."""


class ToolCalls:
    __slots__ = (
        "_arguments",
        "_budgets",
        "_call_log",
        "_durable",
        "_lookup",
        "_plan",
        "_promotions",
        "_relay",
        "_sending",
        "_tasks",
        "_upstreams",
        "_validation",
        "_views",
    )

    def __init__(
        self,
        lookup: Lookup,
        sending: Sending,
        durable: DurableCalls,
        tasks: TaskEngine,
        *,
        arguments: ArgumentChecks,
        validation: Validation,
        call_log: CallLog,
    ) -> None:
        # What every plain call needs is at hand without a further look-up.
        self._plan, self._views = lookup.plan, lookup.views
        self._upstreams, self._relay, self._budgets = sending.upstreams, sending.relay, sending.budgets
        self._lookup = lookup
        self._sending = sending
        self._durable = durable
        self._tasks = tasks
        self._promotions = tasks.promotions
        self._arguments = arguments
        self._validation = validation
        self._call_log = call_log

    def call(self, request: Request, *, not_listed: NotListed | None = None) -> Awaitable[bytes]:
        """Run a tool of a server. `not_listed` answers names that this caller sees no server's tool under, and all names in scopes
        that show only our own tools; without it they are looked for.
        """
        name = request.params.get("name")
        if type(name) is not str:
            raise CallerError("invalid_params", 'tools/call needs "name", a string, and "arguments", an object.')
        arguments = request.params.get("arguments")
        if arguments is not None and type(arguments) is not dict:
            raise CallerError("invalid_params", '"arguments" must be an object.')
        view = self._views.current(self._plan.value, request.caller, request.narrowing)
        tool = view.tools.get(name) if view is not None else None
        if not_listed is not None and (view is None or tool is None or view.scope.mode is ScopeMode.FACADE):
            return not_listed(request)
        if tool is None:
            return self._unlisted(request, name, arguments)
        if tool.plain and _SPECIAL.isdisjoint(request.params) and b"idempotency-key" not in request.headers:
            meta = request.params.get("_meta")
            if type(meta) is not dict or _SPECIAL_META.isdisjoint(meta):
                if len(request.message.raw_params or b"") >= LARGE_BYTES:
                    return self._plainly_in_turns(request, tool, arguments)
                self._arguments.validate_and_learn(request, tool, arguments)
                return self._plainly(request, tool, arguments)
        return self._specially(request, tool, arguments)

    async def _plainly_in_turns(self, request: Request, tool: ToolRef, arguments: Any) -> bytes:
        await next_step(request)
        self._arguments.validate_and_learn(request, tool, arguments)
        await next_step(request)
        request.members()
        await next_step(request)
        return await self._plainly(request, tool, arguments)

    async def _unlisted(self, request: Request, name: str, arguments: Any) -> bytes:
        """Nothing is known of the tool as yet, or nothing any more."""
        return await self._specially(request, await self._lookup.tool(request, name), arguments)

    async def _specially(self, request: Request, tool: ToolRef, arguments: Any) -> bytes:
        reply = await self._durable.answer(request, tool, arguments)
        return reply if reply is not None else await self._plainly(request, tool, arguments)

    async def _plainly(self, request: Request, tool: ToolRef, arguments: Any) -> bytes:
        """Carry the call. Nothing is written and nothing runs beside it, unless it takes long."""
        promotion = self._promotions.begin(request, lambda: self._too_slow(request, tool))
        beat: Heartbeat | None = None
        if request.progress_token is not None:
            beat = Heartbeat(request, self._plan.value.calls.delivery.heartbeat_s, f"{tool.wire} is still running")
            beat.start()
        try:
            line = self._budgets.lines.get(tool.server) if self._budgets.lines else None
            if line is None:
                upstream = self._upstreams.value[tool.server]
                result = await self._relay.carry(request, upstream, self._call(request, upstream, tool, arguments))
            else:
                result = await self._in_line(request, tool, arguments, line, promotion=promotion)
            small = result
            if tool.has_output_schema or self._budgets.outputs or len(result) >= LARGE_BYTES or MARK in result:
                result, small = await self._looked_at(request, tool, result)
        except (RelayedError, TaskgateError) as problem:
            return await self._failed(request, tool, promotion, problem)
        except asyncio.CancelledError:
            if not await promotion.broken_off():
                raise
            # The task was cancelled, and with it the call that this coroutine carried for it. Its caller is long served.
            return b"{}"
        finally:
            if beat is not None:
                beat.stop()
        task = None if promotion.leave() else await promotion.over()
        if task is not None:
            await promotion.finish(task, result, upstream_task(request, tool, small))
            return b"{}"
        handle = upstream_task(request, tool, small) if request.envelope is not None and b'"taskId"' in small else None
        if handle is not None:
            return await self._tasks.adopt_upstream_task(request, self._durable.new_call(request, tool), handle)
        failed = b'"isError"' in small and is_error(small)
        self._call_log.note(request, tool, "error" if failed else "ok", Executed.YES, len(result))
        return result

    async def _looked_at(self, request: Request, tool: ToolRef, result: bytes) -> tuple[bytes, bytes]:
        """The result as its caller may have it: as the tool declares it, not too long, its links noted. And the same without its
        large members, for whoever wants to know about the small ones. Raises InvalidOutput.
        """
        if tool.has_output_schema and tool.entry is not None and self._validation.on:
            await self._validation.output(tool.entry, tool.wire, result)
        if self._budgets.outputs:
            result = await self._budgets.cut(tool.server, result)
        await self._sending.note_links(request, tool.server, result)
        return result, await looked_at(result)

    async def _failed(
        self, request: Request, tool: ToolRef, promotion: Promotion, problem: RelayedError | TaskgateError
    ) -> bytes:
        """What its caller gets, or nothing if the call has become a task meanwhile, which fails. Raises what is not the tool's."""
        task = await promotion.over()
        if task is not None:
            await promotion.fail(task, problem)
            return b"{}"
        if isinstance(problem, AccountNeeded):
            return await self._durable.account_first(request, tool, problem)
        executed = problem.executed if isinstance(problem, TaskgateError) else Executed.YES
        self._call_log.note(request, tool, "error", executed, 0)
        if isinstance(problem, UpstreamError):
            return as_tool_result(problem, request.generation)
        raise problem

    async def _in_line(
        self, request: Request, tool: ToolRef, arguments: Any, line: ServerQueue, *, promotion: Promotion
    ) -> bytes:
        """The result of a call to a server that takes only so many at once: in its turn."""
        promotion.wait_in_line()
        async with line.slot(fair_key(request)):
            await promotion.through()
            upstream = self._upstreams.value[tool.server]
            return await self._relay.carry(request, upstream, self._call(request, upstream, tool, arguments))

    def _too_slow(self, request: Request, tool: ToolRef) -> NewCall:
        """The call is just becoming a task. The next of this tool is expected to."""
        self._promotions.note_promoted(tool.server, tool.name)
        return self._durable.new_call(request, tool)

    def _call(self, request: Request, upstream: Upstream, tool: ToolRef, arguments: Any) -> UpstreamCall:
        params = request.members()
        params["name"] = tool.raw_name
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if tool.header_params:
            values = header_values(tool.header_params, arguments or {})
            headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in values.items())
        return self._relay.call_for(
            request, upstream, "tools/call", params, name=tool.name, timeout_s=tool.timeout_s, headers=headers
        )
