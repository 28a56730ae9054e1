"""Tool calls that are more than plain: governed, asked for as a task, repeated under a key, to be held for somebody's account.

What such a call needs must outlive the gateway, so it is written down as a task before anything is sent; its caller gets a
handle, or its reply is held as long as this caller waits for one.

Does a call obey what its tool showed this caller about tasks? Required, forbidden, or as the caller likes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from taskgate.core.catalog.schema_check import UnusableSchema
from taskgate.core.catalog.tool_listing import TaskCheck, TaskSupport, check_task
from taskgate.core.delivery import Form
from taskgate.core.errors import CallerError
from taskgate.core.generations import TASKS_EXTENSION, Generation, missing_capability, speaks_tasks
from taskgate.core.governance.decision import Denied, Forward
from taskgate.core.wire import meta_of
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.validate import ArgumentChecks
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.ask_caller import ByUrl
from taskgate.gateway.governance.call_log import CallLog
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.caller_keys import fair_key, idempotency_key
from taskgate.gateway.requests.request import Request, next_step
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.mcp.param_headers import mismatch
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.credentials import AccountNeeded
from taskgate.telemetry.logs import log

TASK_META: Final = "taskgate/task"
"""With this key set to true in `_meta` a stateless caller asks for a task handle at once."""
TTL_META: Final = "taskgate/ttl"
"""Beside it: how many milliseconds a stateless caller wants its task to be kept."""


def wants_handle(request: Request) -> bool:
    """Whether a stateless caller asked for a handle at once. On the path of every call."""
    return request.envelope is not None and meta_of(request.params).get(TASK_META) is True


def _stateless_contract(request: Request) -> TaskCheck:
    """A task and nothing else, by the operator's wish or the caller's: this generation has its own word for a caller that cannot
    follow one.
    """
    if request.envelope is not None and not request.envelope.wants_tasks:
        raise missing_capability(
            {"extensions": {TASKS_EXTENSION: {}}}, "Declare the tasks extension to get a task handle."
        )
    return TaskCheck.TASK


def check_param_headers(request: Request, tool: ToolRef, arguments: dict[str, Any]) -> None:
    """Arguments that a schema puts into headers must be there, and be the same (2026-07-28, transports)."""
    if request.generation is Generation.STATELESS and tool.header_params and request.headers:
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.items()}
        problem = mismatch(tool.header_params, arguments, headers)
        if problem is not None:
            raise CallerError("header_mismatch", problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableCalls:
    lookup: Lookup
    arguments: ArgumentChecks
    budgets: Budgets
    gate: CallGate
    by_url: ByUrl
    tasks: TaskEngine
    call_log: CallLog
    count_validation_error: Callable[[str], None]
    """A call broke its tool's task contract."""

    async def answer(self, request: Request, tool: ToolRef, arguments: Any) -> bytes | None:
        """Everything that a call may be besides plain: governed, asked for as a task, repeated, carried in headers. None if it is
        none of these, and may be sent plainly.
        """
        check_param_headers(request, tool, arguments or {})
        decision = tool.decision
        governed = type(decision) is not Forward or decision.note is not None
        check, approval = TaskCheck.SYNC, None
        if type(decision) is Denied:
            await self.gate.for_tool(request, tool)
        await next_step(request)
        unusable = self._validated(request, tool, arguments, governed)
        await next_step(request)
        request.members()
        await next_step(request)
        required = tool.entry is not None and tool.entry.task_support is TaskSupport.REQUIRED
        if "task" in request.params or tool.forced or governed or required or wants_handle(request):
            check = self._task_contract(request, tool)
        if governed or "requestState" in request.params:
            resumed = await self.by_url.resumed(request, tool)
            if resumed is not None:
                return resumed
            approval = await self._approval(request, tool, arguments) if governed else None
            if approval is None and unusable is not None:
                raise unusable
        if check is TaskCheck.TASK:
            return await self._as_task(request, tool, approval)
        key = idempotency_key(request)
        if approval is not None:
            return await self._held(request, tool, approval, key)
        if key is not None or required or self._outlasts_us(request, tool):
            self._refuse_if_full(request, tool)
            _task, reply = await self.tasks.hold(request, self.new_call(request, tool), None, key)
            return reply
        return None

    def _validated(self, request: Request, tool: ToolRef, arguments: Any, governed: bool) -> UnusableSchema | None:
        """Check the arguments as the configuration wants it. A schema that cannot be used refuses a call, where checks are
        enforced, only if no person is going to see it.
        """
        try:
            self.arguments.validate_and_learn(request, tool, arguments)
        except UnusableSchema as problem:
            if not governed:
                raise
            return problem
        return None

    async def _approval(self, request: Request, tool: ToolRef, arguments: Any) -> ApprovalRequest | None:
        """The approval that the call must be held for. Raises InvalidArguments: people are not asked about what cannot run."""
        approval = await self.gate.for_tool(request, tool)
        if approval is None:
            return None
        await next_step(request)
        unvalidated = self.arguments.before_hold(request, tool, arguments)
        return msgspec.structs.replace(approval, unvalidated=unvalidated)

    def _task_contract(self, request: Request, tool: ToolRef) -> TaskCheck:
        """Does the call obey what the tool showed this caller about tasks?"""
        session = request.session
        if session is None and not request.inner and (tool.forced or wants_handle(request)):
            return _stateless_contract(request)
        if session is None or request.inner or not speaks_tasks(session.version):
            return TaskCheck.SYNC
        present = "task" in request.params
        shown = self.lookup.view_of(request).shown(tool, session.task_aware or present) or TaskSupport.FORBIDDEN
        check = check_task(shown, task_present=present)
        if check is TaskCheck.TASK_REQUIRED:
            self.count_validation_error("required")
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
            self.count_validation_error("forbidden")
            raise CallerError(
                "task_forbidden",
                f"{tool.wire!r} cannot be called as a task. It was not executed.",
                data={"tool": tool.wire, "reason": "This tool does not support task-augmented calls."},
            )
        if present:
            session.uses_tasks()
        return check

    def _outlasts_us(self, request: Request, tool: ToolRef) -> bool:
        """Whether a call is durable from the start because its server can run it as a task of its own, which a crash of ours does
        not touch: a call by `execute_tool`, and any call of a tool that took so long before that it was promoted. Others are sent
        plainly, because a task costs them two more round trips.
        """
        if not tool.upstream_tasks or tool.entry is None or tool.entry.task_support is not TaskSupport.OPTIONAL:
            return False
        return request.inner or (tool.server, tool.name) in self.tasks.promotions.tools

    async def _held(self, request: Request, tool: ToolRef, approval: ApprovalRequest, key: str | None) -> bytes:
        """People must agree first, and the caller did not ask for a task: wait for them as this caller's delivery mode allows."""
        self._refuse_if_full(request, tool)
        call = self.new_call(request, tool)
        later = self.gate.approvals.run_on()
        question = self.by_url.question_for(request, approval)
        if question is not None:
            return await self.by_url.begin(request, tool, replace(call, run_on=later), approval, question, key=key)
        if self.tasks.promotions.delivery_mode(request).form is Form.HANDLE:
            call = replace(call, run_on=later)
        _task, reply = await self.tasks.hold(request, call, approval, key)
        return reply

    async def _as_task(self, request: Request, tool: ToolRef, approval: ApprovalRequest | None = None) -> bytes:
        """The caller sent `task`, or the tool runs in no other way: a handle at once, the run as soon as it may be."""
        self._refuse_if_full(request, tool)
        # The tasks extension of 2026-07-28 gives callers no say in the ttl; ours is asked for in `_meta`.
        stateless = {"ttl": meta_of(request.params).get(TTL_META)}
        ttl = self.tasks.ttl_ms(request.params["task"] if request.session is not None else stateless)
        if ttl.clamped:
            log.warning("ttl clamped", tool=tool.wire, ttl_ms=ttl.ms)
        call = self.new_call(request, tool, ttl.ms)
        if approval is not None:
            call = replace(call, run_on=self.gate.approvals.run_on())
        _task, reply = await self.tasks.create(request, call, approval, idempotency_key(request))
        return reply

    def new_call(self, request: Request, tool: ToolRef, ttl_ms: int | None = None) -> NewCall:
        plan = self.lookup.plan.value
        self.call_log.became_task(request, tool)
        annotations = tool.entry.annotations if tool.entry is not None else {}
        return NewCall(
            tool.server,
            tool.name,
            tool.wire,
            request.members(),
            plan.class_of(tool.server, tool.name, annotations),
            tool.definition_digest,
            plan.gates.revision,
            int(plan.timeout_of(tool.server) * 1000),
            ttl_ms if ttl_ms is not None else self._usual_ttl_ms(request),
            scope_revision=tool.revision,
            keep_result_ms=plan.calls.keep_result_ms,
        )

    def _usual_ttl_ms(self, request: Request) -> int:
        """How long a task is kept whose caller does not say; tasks of the facade's tools have a time of their own."""
        calls = self.lookup.plan.value.calls
        return calls.facade_ttl_ms if request.inner else calls.default_ttl_ms

    async def account_first(self, request: Request, tool: ToolRef, needed: AccountNeeded) -> bytes:
        """Nothing was sent: the person is asked to connect their account, and the call waits for that as a task."""
        asked = await self.tasks.account_questions.as_result(request, needed, "tools/call", tool.name)
        if asked is not None:
            return asked
        self._refuse_if_full(request, tool)
        call = self.new_call(request, tool)
        # Answers to our own question are not the server's business.
        params = {key: value for key, value in call.params.items() if key not in ("requestState", "inputResponses")}
        _task, reply = await self.tasks.hold(request, replace(call, params=params), None, None)
        return reply

    def _refuse_if_full(self, request: Request, tool: ToolRef) -> None:
        """A task for a server at which no more may wait is refused while nothing has been promised."""
        line = self.budgets.lines.get(tool.server)
        if line is not None:
            line.refuse_if_full(fair_key(request))
