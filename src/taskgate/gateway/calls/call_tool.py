"""A caller asks for a tool to be run.

Find the tool in what this caller sees, let the gates decide, and bring the call to its server: as a task if the caller asked for
one, durable from the start if someone must agree first or the caller gave a key, else plainly, with a task to fall back on when
it takes long. A name that is hidden, denied or unknown gets one and the same answer.

Does a call obey what its tool showed this caller about tasks? Required, forbidden, or as the caller likes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.catalog.entry import MARK
from taskgate.core.catalog.tool_listing import TaskCheck, TaskSupport, check_task
from taskgate.core.delivery import Form
from taskgate.core.errors import CallerError, Executed, TaskgateError, UpstreamError
from taskgate.core.generations import (
    TASKS_EXTENSION,
    Generation,
    complete,
    error_data,
    missing_capability,
    speaks_tasks,
)
from taskgate.core.governance.decision import Denied, Forward
from taskgate.core.scoping.scope import ScopeMode
from taskgate.core.tasks.task import UpstreamHandle
from taskgate.core.wire import Raw, meta_of
from taskgate.gateway.calls.context import Context, find_tool
from taskgate.gateway.catalog.validate import MAX_NOTED_BYTES
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.plan import Validate
from taskgate.gateway.requests.admission import ServerQueue
from taskgate.gateway.requests.large_results import looked_at
from taskgate.gateway.requests.request import KEY_META, Heartbeat, Request, fair_key, idempotency_key
from taskgate.gateway.tasks.promote import Promotion
from taskgate.gateway.tasks.sends import is_error
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.mcp.param_headers import header_values, mismatch
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.credentials import AccountNeeded
from taskgate.ports.upstream import RelayedError, Upstream, UpstreamCall
from taskgate.turns import LARGE_BYTES

TASK_META: Final = "taskgate/task"
"""With this key set to true in `_meta` a stateless caller asks for a task handle at once."""


def wants_handle(request: Request) -> bool:
    """Whether a stateless caller asked for a handle at once. On the path of every call."""
    return request.envelope is not None and meta_of(request.params).get(TASK_META) is True


def task_contract(context: Context, request: Request, tool: ToolRef) -> TaskCheck:
    """Does the call obey what the tool showed this caller about tasks?"""
    session = request.session
    if session is None and not request.inner and (tool.forced or wants_handle(request)):
        return _stateless_contract(request)
    if session is None or request.inner or not speaks_tasks(session.version):
        return TaskCheck.SYNC
    present = "task" in request.params
    shown = context.view_of(request).shown(tool, session.task_aware or present) or TaskSupport.FORBIDDEN
    check = check_task(shown, task_present=present)
    if check is TaskCheck.TASK_REQUIRED:
        context.count_validation_error("required")
        raise CallerError(
            "task_required",
            f"{tool.wire!r} must be called as a task. It was not executed.",
            data={
                "tool": tool.wire,
                "reason": "This operation needs time or an approval, so it must be called with task metadata.",
                "hint": 'Include the task field: {"task": {"ttl": 600000}}',
            },
        )
    if check is TaskCheck.TASK_FORBIDDEN:
        context.count_validation_error("forbidden")
        raise CallerError(
            "task_forbidden",
            f"{tool.wire!r} cannot be called as a task. It was not executed.",
            data={"tool": tool.wire, "reason": "This tool does not support task-augmented calls."},
        )
    if present:
        session.uses_tasks()
    return check


def _stateless_contract(request: Request) -> TaskCheck:
    """A task and nothing else, by the operator's wish or the caller's: this generation has its own word for a caller that cannot
    follow one.
    """
    if request.envelope is not None and not request.envelope.wants_tasks:
        raise missing_capability(
            {"extensions": {TASKS_EXTENSION: {}}}, "Declare the tasks extension to get a task handle."
        )
    return TaskCheck.TASK


NotListed = Callable[[Request], Awaitable[bytes]]


def call_tool(context: Context, request: Request, *, not_listed: NotListed | None = None) -> Awaitable[bytes]:
    """Run a tool of a server. `not_listed` answers names that this caller sees no server's tool under, and all names in scopes
    that show only our own tools; without it they are looked for.
    """
    name = request.params.get("name")
    if type(name) is not str:
        raise CallerError("invalid_params", 'tools/call needs "name", a string, and "arguments", an object.')
    arguments = request.params.get("arguments")
    if arguments is not None and type(arguments) is not dict:
        raise CallerError("invalid_params", '"arguments" must be an object.')
    plan = context.live_plan.value
    view = context.views.current(plan, request.caller, request.narrowing)
    tool = view.tools.get(name) if view is not None else None
    if not_listed is not None and (view is None or tool is None or view.scope.mode is ScopeMode.FACADE):
        return not_listed(request)
    if tool is None:
        return _unlisted(context, request, name, arguments)
    if tool.plain and _SPECIAL.isdisjoint(request.params) and b"idempotency-key" not in request.headers:
        meta = request.params.get("_meta")
        if type(meta) is not dict or _SPECIAL_META.isdisjoint(meta):
            _validate_and_learn(context, request, tool, arguments)
            return plainly(context, request, tool, arguments)
    return _specially(context, request, tool, arguments)


async def _unlisted(context: Context, request: Request, name: str, arguments: Any) -> bytes:
    """Nothing is known of the tool as yet, or nothing any more."""
    return await _specially(context, request, await find_tool(context, request, name), arguments)


_SPECIAL: Final = frozenset({"task", "requestState"})
"""Params without any of these ask for nothing but the call."""
_SPECIAL_META: Final = frozenset({TASK_META, KEY_META})
"""Nor does `_meta` without any of these."""


def _validate_and_learn(context: Context, request: Request, tool: ToolRef, arguments: Any) -> None:
    features = context.live_plan.value.features
    if tool.entry is not None and features.validate is not Validate.OFF:
        context.validation.arguments(tool.entry, tool.wire, arguments, request.message.raw_params or b"")
    if arguments and features.learn and len(request.message.raw_params or b"") <= MAX_NOTED_BYTES:
        context.completions.note(fair_key(request), tool.server, tool.name, arguments)


async def _specially(context: Context, request: Request, tool: ToolRef, arguments: Any) -> bytes:
    """Everything that a call may be besides plain: governed, asked for as a task, repeated, carried in headers."""
    check_param_headers(request, tool, arguments or {})
    decision = tool.decision
    governed = type(decision) is not Forward or decision.note is not None
    check, approval = TaskCheck.SYNC, None
    if type(decision) is Denied:
        context.gate.for_tool(request, tool)
    _validate_and_learn(context, request, tool, arguments)
    required = tool.entry is not None and tool.entry.task_support is TaskSupport.REQUIRED
    if "task" in request.params or tool.forced or governed or required or wants_handle(request):
        check = task_contract(context, request, tool)
    if governed or "requestState" in request.params:
        resumed = await context.by_url.resumed(request, tool)
        if resumed is not None:
            return resumed
        approval = context.gate.for_tool(request, tool) if governed else None
    if check is TaskCheck.TASK:
        return await as_task(context, request, tool, approval)
    key = idempotency_key(request)
    if approval is not None:
        return await held(context, request, tool, approval, key)
    if key is not None or required or _outlasts_us(context, request, tool):
        refuse_if_full(context, request, tool)
        _task, reply = await context.tasks.hold(request, new_call(context, request, tool), None, key)
        return reply
    return await plainly(context, request, tool, arguments)


def _outlasts_us(context: Context, request: Request, tool: ToolRef) -> bool:
    """Whether a call is durable from the start because its server can run it as a task of its own, which a crash of ours does not
    touch: a call by `execute_tool`, and any call of a tool that took so long before that it was promoted. Others are sent
    plainly, because a task costs them two more round trips.
    """
    if not tool.upstream_tasks or tool.entry is None or tool.entry.task_support is not TaskSupport.OPTIONAL:
        return False
    return request.inner or (tool.server, tool.name) in context.tasks.promotions.tools


def check_param_headers(request: Request, tool: ToolRef, arguments: dict[str, Any]) -> None:
    """Arguments that a schema puts into headers must be there, and be the same (2026-07-28, transports)."""
    if request.generation is Generation.STATELESS and tool.header_params and request.headers:
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.items()}
        problem = mismatch(tool.header_params, arguments, headers)
        if problem is not None:
            raise CallerError("header_mismatch", problem)


async def held(context: Context, request: Request, tool: ToolRef, approval: ApprovalRequest, key: str | None) -> bytes:
    """People must agree first, and the caller did not ask for a task: wait for them as this caller's delivery mode allows."""
    refuse_if_full(context, request, tool)
    call = new_call(context, request, tool)
    later = context.gate.approvals.run_on()
    question = context.by_url.question_for(request, approval)
    if question is not None:
        return await context.by_url.begin(request, tool, replace(call, run_on=later), approval, question, key=key)
    if context.tasks.promotions.delivery_mode(request).form is Form.HANDLE:
        call = replace(call, run_on=later)
    _task, reply = await context.tasks.hold(request, call, approval, key)
    return reply


async def as_task(context: Context, request: Request, tool: ToolRef, approval: ApprovalRequest | None = None) -> bytes:
    """The caller sent `task`, or the tool runs in no other way: a handle at once, the run as soon as it may be."""
    refuse_if_full(context, request, tool)
    # Stateless callers have no say in the ttl, whatever they send (2026-07-28, tasks extension).
    ttl = context.tasks.ttl_ms(request.params["task"] if request.session is not None else {})
    if ttl.clamped:
        context.warn("ttl clamped", tool=tool.wire, ttl_ms=ttl.ms)
    call = new_call(context, request, tool, ttl.ms)
    if approval is not None:
        call = replace(call, run_on=context.gate.approvals.run_on())
    _task, reply = await context.tasks.create(request, call, approval, idempotency_key(request))
    return reply


def new_call(context: Context, request: Request, tool: ToolRef, ttl_ms: int | None = None) -> NewCall:
    plan = context.plan
    context.call_log.became_task(request, tool)
    annotations = tool.entry.annotations if tool.entry is not None else {}
    return NewCall(
        tool.server,
        tool.name,
        tool.wire,
        request.members(),
        plan.class_of(tool.server, tool.name, annotations),
        tool.entry.digest if tool.entry is not None else "",
        plan.gates.revision,
        int(plan.timeout_of(tool.server) * 1000),
        ttl_ms if ttl_ms is not None else _usual_ttl_ms(context, request),
        scope_revision=tool.revision,
        keep_result_ms=plan.calls.keep_result_ms,
    )


def _too_slow(context: Context, request: Request, tool: ToolRef) -> NewCall:
    """The call is just becoming a task. The next of this tool is expected to."""
    context.tasks.promotions.note_promoted(tool.server, tool.name)
    return new_call(context, request, tool)


def _usual_ttl_ms(context: Context, request: Request) -> int:
    """How long a task is kept whose caller does not say; tasks of the facade's tools have a time of their own."""
    calls = context.plan.calls
    return calls.facade_ttl_ms if request.inner else calls.default_ttl_ms


async def plainly(context: Context, request: Request, tool: ToolRef, arguments: Any) -> bytes:
    """Carry the call. Nothing is written and nothing runs beside it, unless it takes long."""
    promotion = context.tasks.promotions.begin(request, lambda: _too_slow(context, request, tool))
    beat: Heartbeat | None = None
    if request.progress_token is not None:
        beat = Heartbeat(request, context.plan.calls.delivery.heartbeat_s, f"{tool.wire} is still running")
        beat.start()
    try:
        line = context.budgets.lines.get(tool.server) if context.budgets.lines else None
        if line is None:
            upstream = context.live_upstreams.value[tool.server]
            result = await context.relay.carry(request, upstream, _call(context, request, upstream, tool, arguments))
        else:
            result = await _in_line(context, request, tool, arguments, line, promotion=promotion)
        small = result
        if tool.has_output_schema or context.budgets.outputs or len(result) >= LARGE_BYTES or MARK in result:
            result, small = await _looked_at(context, request, tool, result)
    except (RelayedError, TaskgateError) as problem:
        return await _failed(context, request, tool, promotion, problem)
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
        return await context.tasks.adopt_upstream_task(request, new_call(context, request, tool), handle)
    failed = b'"isError"' in small and is_error(small)
    context.call_log.note(request, tool, "error" if failed else "ok", Executed.YES, len(result))
    return result


async def _looked_at(context: Context, request: Request, tool: ToolRef, result: bytes) -> tuple[bytes, bytes]:
    """The result as its caller may have it: as the tool declares it, not too long, its links noted. And the same without its
    large members, for whoever wants to know about the small ones. Raises InvalidOutput.
    """
    if tool.has_output_schema and tool.entry is not None and context.validation.on:
        await context.validation.output(tool.entry, tool.wire, result)
    if context.budgets.outputs:
        result = await context.budgets.cut(tool.server, result)
    caller = request.caller
    if len(result) >= LARGE_BYTES:
        await context.handed_out.note_large(caller.principal, caller.scope, tool.server, result)
    else:
        context.handed_out.note(caller.principal, caller.scope, tool.server, result)
    return result, await looked_at(result)


async def _failed(
    context: Context, request: Request, tool: ToolRef, promotion: Promotion, problem: RelayedError | TaskgateError
) -> bytes:
    """What its caller gets, or nothing if the call has become a task meanwhile, which fails. Raises what is not the tool's."""
    task = await promotion.over()
    if task is not None:
        await promotion.fail(task, problem)
        return b"{}"
    if isinstance(problem, AccountNeeded):
        return await _account_first(context, request, tool, problem)
    executed = problem.executed if isinstance(problem, TaskgateError) else Executed.YES
    context.call_log.note(request, tool, "error", executed, 0)
    if isinstance(problem, UpstreamError):
        return as_tool_result(problem, request.generation)
    raise problem


async def _account_first(context: Context, request: Request, tool: ToolRef, needed: AccountNeeded) -> bytes:
    """Nothing was sent: the person is asked to connect their account, and the call waits for that as a task."""
    asked = await context.tasks.account_questions.as_result(request, needed, "tools/call", tool.name)
    if asked is not None:
        return asked
    refuse_if_full(context, request, tool)
    call = new_call(context, request, tool)
    # Answers to our own question are not the server's business.
    params = {key: value for key, value in call.params.items() if key not in ("requestState", "inputResponses")}
    _task, reply = await context.tasks.hold(request, replace(call, params=params), None, None)
    return reply


async def _in_line(
    context: Context, request: Request, tool: ToolRef, arguments: Any, line: ServerQueue, *, promotion: Promotion
) -> bytes:
    """The result of a call to a server that takes only so many at once: in its turn."""
    promotion.wait_in_line()
    async with line.slot(fair_key(request), tool.timeout_s):
        await promotion.through()
        upstream = context.live_upstreams.value[tool.server]
        return await context.relay.carry(request, upstream, _call(context, request, upstream, tool, arguments))


def refuse_if_full(context: Context, request: Request, tool: ToolRef) -> None:
    """A task for a server at which no more may wait is refused while nothing has been promised."""
    line = context.budgets.lines.get(tool.server)
    if line is not None:
        line.refuse_if_full(fair_key(request))


def upstream_task(request: Request, tool: ToolRef, result: bytes) -> UpstreamHandle | None:
    """A stateless upstream may answer a caller that knows tasks with a task of its own."""
    if request.envelope is None or b'"taskId"' not in result or not request.envelope.wants_tasks:
        return None
    members = wire.members_of(result)
    if bytes(members.get("resultType", Raw(b""))) != b'"task"':
        return None
    task_id = wire.parse_strictly(bytes(members.get("taskId", Raw(b"null"))))
    if type(task_id) is not str:
        return None
    return UpstreamHandle(tool.server, task_id, None, Generation.STATELESS)


def as_tool_result(problem: UpstreamError, generation: Generation) -> bytes:
    """A failure while running the tool, as a result: models see results and may never see protocol errors."""
    data = error_data(problem, secrets.token_hex(8))
    result = wire.encode(
        {
            "content": [{"type": "text", "text": problem.message}],
            "isError": True,
            "_meta": {"taskgate/error": data},
        }
    )
    return complete(result) if generation is Generation.STATELESS else result


def _call(context: Context, request: Request, upstream: Upstream, tool: ToolRef, arguments: Any) -> UpstreamCall:
    params = request.members()
    params["name"] = tool.raw_name
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if tool.header_params:
        values = header_values(tool.header_params, arguments or {})
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in values.items())
    return context.relay.call_for(
        request, upstream, "tools/call", params, name=tool.name, timeout_s=tool.timeout_s, headers=headers
    )
