"""`tools/call`: find the tool in the caller's view, apply the gates, and forward the call to its server.

A call that needs more than forwarding (approval, task metadata, an idempotency key) is answered by `durable_calls`. Any other
call is forwarded directly and becomes a task only if it takes longer than its caller waits. Hidden, denied and unknown names get
the same error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from taskgate.core.catalog.links import may_name_uris
from taskgate.core.errors import CallerError, Executed, TaskgateError, UpstreamError
from taskgate.core.history.row import CallOutcome
from taskgate.core.meta_keys import KEY_META, TASK_META
from taskgate.core.scoping.scope import ScopeMode
from taskgate.gateway.calls.durable_calls import DurableCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.calls.tool_results import as_tool_result, first_text_of, message_of, small_members, upstream_task
from taskgate.gateway.catalog.argument_checks import ArgumentChecks
from taskgate.gateway.catalog.validate import Validation
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.journal import CallEnded, Journal
from taskgate.gateway.requests.caller_keys import fair_key
from taskgate.gateway.requests.heartbeat import Heartbeat
from taskgate.gateway.requests.request import Request, yield_if_large
from taskgate.gateway.requests.server_queue import ServerQueue
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.promotion import Promotion
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.mcp.param_headers import header_values
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_credentials import AccountNeeded
from taskgate.ports.upstream_replies import RelayedError, Result
from taskgate.telemetry.logs import log
from taskgate.turns import LARGE_BYTES

NotListed = Callable[[Request], Awaitable[bytes]]

_DURABLE_PARAMS: Final = frozenset({"task", "requestState"})
_DURABLE_META: Final = frozenset({TASK_META, KEY_META})
"""Params and `_meta` keys that need `durable_calls`. A call without any of them is forwarded directly."""
_FACADE: Final = ScopeMode.FACADE
_OK: Final = CallOutcome.OK
_EXECUTED: Final = Executed.YES
_ALREADY_ANSWERED: Final = b"{}"
"""Returned for a call that became a task: its caller got the reply at promotion, so this one is not sent."""


class ToolCalls:
    __slots__ = (
        "_arguments",
        "_budgets",
        "_durable",
        "_journal",
        "_lookup",
        "_plan",
        "_promotions",
        "_relay",
        "_sending",
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
        journal: Journal,
    ) -> None:
        # Resolved once: every plain call uses these.
        self._plan, self._views = lookup.plan, lookup.views
        self._upstreams, self._relay, self._budgets = sending.upstreams, sending.relay, sending.budgets
        self._lookup = lookup
        self._sending = sending
        self._durable = durable
        self._promotions = tasks.promotions
        self._arguments = arguments
        self._validation = validation
        self._journal = journal

    def call(self, request: Request, not_listed: NotListed | None = None) -> Awaitable[bytes]:
        """Run a server's tool.

        `not_listed` answers names that are not in the caller's view, and all names in facade scopes, which list only the gateway's
        own tools. Without it, such names are looked up at the servers.
        """
        params, message = request.params, request.message
        name = params.get("name")
        if type(name) is not str:
            raise CallerError("invalid_params", 'tools/call needs "name", a string, and "arguments", an object.')
        arguments = params.get("arguments")
        if arguments is not None and type(arguments) is not dict:
            raise CallerError("invalid_params", '"arguments" must be an object.')
        view = self._views.current(self._plan.value, request.caller, request.narrowing)
        tool = view.tools.get(name) if view is not None else None
        if not_listed is not None and (view is None or tool is None or view.scope.mode is _FACADE):
            return not_listed(request)
        if tool is None:
            return self._call_unlisted(request, name, arguments)
        if tool.plain and _DURABLE_PARAMS.isdisjoint(params) and b"idempotency-key" not in request.headers:
            meta = params.get("_meta")
            if type(meta) is not dict or _DURABLE_META.isdisjoint(meta):
                if len(message.raw_params or b"") >= LARGE_BYTES or not self._validation.is_prepared:
                    return self._forward_in_steps(request, tool, arguments)
                self._arguments.validate_and_learn(request, tool, arguments)
                return self._forward(request, tool, arguments)
        return self._forward_as_task(request, tool, arguments)

    async def _call_unlisted(self, request: Request, name: str, arguments: Any) -> bytes:
        """Call a tool that is not in the view: not listed yet, or no longer."""
        return await self._forward_as_task(request, await self._lookup.tool(request, name), arguments)

    async def _forward_as_task(self, request: Request, tool: ToolRef, arguments: Any) -> bytes:
        """Answer by `DurableCalls` if the call needs it; otherwise forward it directly."""
        reply = await self._durable.answer(request, tool, arguments)
        return reply if reply is not None else await self._forward(request, tool, arguments)

    async def _forward_in_steps(self, request: Request, tool: ToolRef, arguments: Any) -> bytes:
        """Forward the first call, or one with large params, and let other requests run between the steps."""
        await self._validation.prepare()
        await yield_if_large(request)
        self._arguments.validate_and_learn(request, tool, arguments)
        await yield_if_large(request)
        request.members()
        await yield_if_large(request)
        return await self._forward(request, tool, arguments)

    # The stages of a forwarded call, in order. Nothing is stored and no further asyncio task is created unless it is promoted.

    async def _forward(self, request: Request, tool: ToolRef, arguments: Any) -> bytes:
        promotion = self._promotions.begin(request, tool, self._promote)
        heartbeat = self._start_heartbeat(request, tool) if request.progress_token is not None else None
        try:
            reply = await self._send(request, tool, arguments, promotion)
            result = reply.raw
            members: Mapping[str, Any] | None = reply.decoded if type(reply.decoded) is dict else None
            if tool.has_output_schema or self._budgets.outputs or members is None or may_name_uris(members):
                result = await self._check_result(request, tool, result)
            if members is None:
                members = await small_members(result)
        except (RelayedError, TaskgateError) as problem:
            return await self._fail(request, tool, promotion, problem)
        except asyncio.CancelledError:
            if not await promotion.interrupted():
                raise
            return _ALREADY_ANSWERED
        except Exception as fault:
            return await self._fail_internal(request, tool, promotion, fault)
        finally:
            if heartbeat is not None:
                heartbeat.stop()
        if promotion.stop_timer() and "taskId" not in members:
            return self._noted(request, tool, result, members)
        return await self._deliver(request, tool, promotion, result, members)

    def _promote(self, request: Request, tool: ToolRef) -> NewCall:
        """Describe the call as a task, and expect the next call of this tool to be slow as well."""
        self._promotions.note_promoted(tool.server, tool.name)
        return self._durable.new_call(request, tool)

    def _start_heartbeat(self, request: Request, tool: ToolRef) -> Heartbeat:
        interval_s = self._plan.value.tasks.heartbeat_ms / 1000
        heartbeat = Heartbeat(request, interval_s, f"{tool.wire} is still running")
        heartbeat.start()
        return heartbeat

    def _send(self, request: Request, tool: ToolRef, arguments: Any, promotion: Promotion) -> Awaitable[Result]:
        server = tool.server
        queue = self._budgets.queues.get(server) if self._budgets.queues else None
        if queue is not None:
            return self._send_in_turn(request, tool, arguments, promotion, queue=queue)
        upstream = self._upstreams.value[server]
        return self._relay.carry(request, upstream, self._upstream_call(request, upstream, tool, arguments))

    async def _send_in_turn(
        self, request: Request, tool: ToolRef, arguments: Any, promotion: Promotion, *, queue: ServerQueue
    ) -> Result:
        """Wait for a slot of a server with `max_concurrency`, then send."""
        promotion.enter_queue()
        async with queue.slot(fair_key(request)):
            await promotion.leave_queue()
            upstream = self._upstreams.value[tool.server]
            return await self._relay.carry(request, upstream, self._upstream_call(request, upstream, tool, arguments))

    async def _check_result(self, request: Request, tool: ToolRef, result: bytes) -> bytes:
        """Validate the result against the output schema, truncate it to the server's budget, and record its links.

        Raises InvalidOutput.
        """
        if tool.has_output_schema and tool.entry is not None and self._validation.on:
            await self._validation.output(tool.entry, tool.wire, result)
        if self._budgets.outputs:
            result = await self._budgets.truncate(tool.server, result)
        await self._sending.note_links(request, tool.server, result)
        return result

    async def _deliver(
        self, request: Request, tool: ToolRef, promotion: Promotion, result: bytes, members: Mapping[str, Any]
    ) -> bytes:
        """Store the result if the call became a task meanwhile. If the server returned a task, the call becomes one now."""
        task = await promotion.task_if_promoted()
        handle = upstream_task(request, tool, members)
        if task is None and handle is not None and not request.delivery.answered:
            promotion.due()
            task = await promotion.task_if_promoted()
        if task is not None:
            await promotion.finish(task, result, handle)
            return _ALREADY_ANSWERED
        return self._noted(request, tool, result, members)

    def _noted(self, request: Request, tool: ToolRef, result: bytes, members: Mapping[str, Any]) -> bytes:
        if members.get("isError") is not True:
            ended = CallEnded(request=request, tool=tool, outcome=_OK, executed=_EXECUTED, size=len(result))
        else:
            why, size = first_text_of(members), len(result)
            ended = CallEnded(
                request=request, tool=tool, outcome=CallOutcome.TOOL_ERROR, executed=_EXECUTED, size=size, why=why
            )
        self._journal.note(ended)
        return result

    async def _fail_internal(self, request: Request, tool: ToolRef, promotion: Promotion, fault: Exception) -> bytes:
        """A fault of the gateway: the request fails, which must not become a task after that, or the task that it became."""
        task = await promotion.task_if_promoted()
        if task is not None:
            await promotion.fail(task, fault)
        elif request.delivery.answered:
            log.error("a call failed that could not be stored as a task", tool=tool.wire, exc_info=fault)
        else:
            raise fault
        return _ALREADY_ANSWERED

    async def _fail(
        self, request: Request, tool: ToolRef, promotion: Promotion, problem: RelayedError | TaskgateError
    ) -> bytes:
        """Fail the task that the call became, or return the failure as a tool result. Raises errors that are not the tool's."""
        task = await promotion.task_if_promoted()
        if task is not None:
            await promotion.fail(task, problem)
            return _ALREADY_ANSWERED
        if isinstance(problem, AccountNeeded) and not request.delivery.answered:
            return await self._durable.connect_account_first(request, tool, problem)
        if isinstance(problem, TaskgateError):
            executed, error_type, why = problem.executed, problem.error_type, problem.message
        else:
            executed, error_type, why = Executed.YES, f"jsonrpc {problem.code}", message_of(problem.raw)
        self._journal.note(
            CallEnded(
                request=request,
                tool=tool,
                outcome=CallOutcome.FAILED,
                executed=executed,
                error_type=error_type,
                why=why,
            )
        )
        if request.delivery.answered:
            return _ALREADY_ANSWERED
        if isinstance(problem, UpstreamError):
            return as_tool_result(problem, request.generation)
        try:
            raise problem
        finally:
            del problem  # see `send_again`

    def _upstream_call(self, request: Request, upstream: Upstream, tool: ToolRef, arguments: Any) -> UpstreamCall:
        params = request.members()
        params["name"] = tool.raw_name
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if tool.header_params:
            values = header_values(tool.header_params, arguments or {})
            headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in values.items())
        return self._relay.call_for(
            request, upstream, "tools/call", params, tool.name, timeout_s=tool.timeout_s, headers=headers
        )
