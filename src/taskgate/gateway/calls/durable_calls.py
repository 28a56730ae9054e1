"""Tool calls that need more than forwarding: governed calls, task calls, calls with an idempotency key.

Such a call must survive a restart of the gateway, so it is stored as a task before anything is sent. Its caller gets a task
handle, or its reply is held for as long as its delivery mode allows. `DurableCalls.STEPS` lists what happens to a call, in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from taskgate.core.catalog.schema_check import UnusableSchema
from taskgate.core.catalog.task_support import TaskSupport
from taskgate.core.delivery import ReplyForm
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.decision import Denied, Forward
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.task_annotation import TaskCheck
from taskgate.core.meta import meta_of
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.task_contract import TaskContract, requests_handle
from taskgate.gateway.catalog.argument_checks import ArgumentChecks
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.approval_by_url import ApprovalByUrl
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.journal import Journal
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.caller_keys import fair_key, idempotency_key
from taskgate.gateway.requests.request import Request, yield_if_large
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.task_records import NewCall
from taskgate.mcp.param_headers import mismatch
from taskgate.ports.upstream_credentials import AccountNeeded
from taskgate.telemetry.logs import log

TTL_META: Final = "taskgate/ttl"
"""With `taskgate/task` in `_meta`: the ttl that a stateless caller requests for its task, in milliseconds."""


class _Call(msgspec.Struct):
    """One call on its way through the steps, and what they found out about it."""

    request: Request
    tool: ToolRef
    arguments: Any
    governed: bool
    """Whether a rule applies to the call: it is denied, needs an approval, or is logged with a note."""
    requires_task: bool
    """Whether the server runs the tool only as a task."""
    runs_as_task: bool = False
    schema_problem: UnusableSchema | None = None
    approval: ApprovalRequest | None = None


class PreparedCall(msgspec.Struct, frozen=True):
    """A call that passed the checks. `approval`: what it must wait for after it is stored."""

    call: NewCall
    approval: ApprovalRequest | None


class DurableCalls(msgspec.Struct, frozen=True, kw_only=True):
    lookup: Lookup
    arguments: ArgumentChecks
    budgets: Budgets
    gate: CallGate
    by_url: ApprovalByUrl
    tasks: TaskEngine
    journal: Journal
    contract: TaskContract

    async def answer(self, request: Request, tool: ToolRef, arguments: Any) -> bytes | None:
        """Run the steps until one returns a reply. Return None if none does: then the call can be forwarded directly."""
        decision, entry = tool.decision, tool.entry
        governed = type(decision) is not Forward or decision.note is not None
        requires_task = entry is not None and entry.task_support is TaskSupport.REQUIRED
        call = _Call(request=request, tool=tool, arguments=arguments, governed=governed, requires_task=requires_task)
        for step in self.STEPS:
            reply = await step(self, call)
            if reply is not None:
                return reply
        return None

    async def prepare(self, request: Request, tool: ToolRef, arguments: Any) -> PreparedCall:
        """Apply the checks of every call to one that a script makes, without storing it. Raises TaskgateError."""
        if self.budgets.limit_callers:
            self.budgets.admit(request)
        try:
            governed = type(tool.decision) is not Forward or tool.decision.note is not None
            call = _Call(request, tool, arguments, governed, requires_task=False)
            for check in self.CHECKS:
                await check(self, call)
            self._refuse_if_full(request, tool)
            return PreparedCall(self.new_call(request, tool), call.approval)
        finally:
            request.delivery.end_call()

    async def _check_headers(self, call: _Call) -> None:
        check_param_headers(call.request, call.tool, call.arguments or {})

    async def _refuse_denied(self, call: _Call) -> None:
        """The gate raises for a denied call, and records the refusal."""
        if type(call.tool.decision) is Denied:
            await self.gate.for_tool(call.request, call.tool)

    async def _validate_arguments(self, call: _Call) -> None:
        """Validate the arguments as configured. A governed call with an unusable schema continues: an approver may still see it."""
        await self.arguments.prepare()
        await yield_if_large(call.request)
        try:
            self.arguments.validate_and_learn(call.request, call.tool, call.arguments)
        except UnusableSchema as problem:
            if not call.governed:
                raise
            call.schema_problem = problem
        await yield_if_large(call.request)
        call.request.members()
        await yield_if_large(call.request)

    async def _check_task_contract(self, call: _Call) -> None:
        request, tool = call.request, call.tool
        concerned = "task" in request.params or tool.forced or call.governed or call.requires_task
        if concerned or requests_handle(request):
            call.runs_as_task = self.contract.check(request, tool) is TaskCheck.TASK

    async def _resume_after_url(self, call: _Call) -> bytes | None:
        """Answer a caller that returns from the approval page that it was asked to open."""
        if not call.governed and "requestState" not in call.request.params:
            return None
        return await self.by_url.resumed(call.request, call.tool)

    async def _resume_with_answers(self, call: _Call) -> bytes | None:
        """Continue a held call whose caller returns the answers to its questions."""
        task = await self.tasks.asking.resumed(call.request, call.tool.name)
        return None if task is None else await self.tasks.hold_reply(call.request, task, waiting_for_people=False)

    async def _request_approval(self, call: _Call) -> None:
        """Find out whether the call needs an approval. Raises InvalidArguments: a call that cannot run is not put to approvers."""
        if not call.governed:
            return
        approval = await self.gate.for_tool(call.request, call.tool)
        if approval is not None:
            await yield_if_large(call.request)
            unvalidated = self.arguments.before_hold(call.request, call.tool, call.arguments)
            call.approval = msgspec.structs.replace(approval, unvalidated=unvalidated)
        elif call.schema_problem is not None:
            raise call.schema_problem

    async def _create_task(self, call: _Call) -> bytes | None:
        """The caller sent `task`, or the tool runs only as a task: return a handle at once."""
        if not call.runs_as_task:
            return None
        request, tool = call.request, call.tool
        self._refuse_if_full(request, tool)
        # The tasks extension of 2026-07-28 has no ttl, so stateless callers set it in `_meta`.
        stateless = {"ttl": meta_of(request.params).get(TTL_META)}
        ttl = self.tasks.ttl_ms(request.params["task"] if request.session is not None else stateless)
        if ttl.clamped:
            log.warning("ttl clamped", tool=tool.wire, ttl_ms=ttl.ms)
        new = self.new_call(request, tool, ttl.ms)
        if call.approval is not None:
            new = replace(new, run_on=self.gate.approvals.run_on())
        _task, reply = await self.tasks.create(request, new, call.approval, idempotency_key(request))
        return reply

    async def _hold_for_approval(self, call: _Call) -> bytes | None:
        """Wait for the approvers as the caller's delivery mode allows."""
        if call.approval is None:
            return None
        request, tool, approval = call.request, call.tool, call.approval
        key = idempotency_key(request)
        self._refuse_if_full(request, tool)
        new, run_on = self.new_call(request, tool), self.gate.approvals.run_on()
        question = self.by_url.question_for(request, approval)
        if question is not None:
            return await self.by_url.begin(request, tool, replace(new, run_on=run_on), approval, question, key=key)
        if self.tasks.promotions.delivery_mode(request).form is ReplyForm.HANDLE:
            new = replace(new, run_on=run_on)
        _task, reply = await self.tasks.hold(request, new, approval, key)
        return reply

    async def _hold_durable(self, call: _Call) -> bytes | None:
        """Store a call that must be durable although its caller requested no task, and hold its reply."""
        request, tool = call.request, call.tool
        key = idempotency_key(request)
        if key is None and not call.requires_task and not self._runs_as_upstream_task(request, tool):
            return None
        self._refuse_if_full(request, tool)
        _task, reply = await self.tasks.hold(request, self.new_call(request, tool), None, key)
        return reply

    STEPS: ClassVar[tuple[Callable[[DurableCalls, _Call], Awaitable[bytes | None]], ...]] = (
        _check_headers,
        _refuse_denied,
        _validate_arguments,
        _check_task_contract,
        _resume_after_url,
        _resume_with_answers,
        _request_approval,
        _create_task,
        _hold_for_approval,
        _hold_durable,
    )
    """What happens to a call, in order. The first reply ends it."""

    CHECKS: ClassVar[tuple[Callable[[DurableCalls, _Call], Awaitable[None]], ...]] = (
        _refuse_denied,
        _validate_arguments,
        _request_approval,
    )
    """The checks among them that apply to a call that a script makes."""

    def _runs_as_upstream_task(self, request: Request, tool: ToolRef) -> bool:
        """Whether to let the server run the call as a task of its own, which survives a crash of the gateway.

        That is the case for calls by `execute_tool`, and for tools that were promoted before. Other calls are forwarded directly,
        because a task costs two more round trips.
        """
        if not tool.upstream_tasks or tool.entry is None or tool.entry.task_support is not TaskSupport.OPTIONAL:
            return False
        return request.inner or (tool.server, tool.name) in self.tasks.promotions.tools

    def _refuse_if_full(self, request: Request, tool: ToolRef) -> None:
        """Raise `overloaded` before a task is created if the server's queue is full."""
        queue = self.budgets.queues.get(tool.server)
        if queue is not None:
            queue.refuse_if_full(fair_key(request))

    def new_call(self, request: Request, tool: ToolRef, ttl_ms: int | None = None) -> NewCall:
        """Describe the call as it is stored in its task."""
        plan = self.lookup.plan.value
        self.journal.became_task(request, tool)
        annotations = tool.entry.annotations if tool.entry is not None else {}
        return NewCall(
            server=tool.server,
            tool=tool.name,
            wire_name=tool.wire,
            params=request.members(),
            tool_class=plan.class_of(tool.server, tool.name, annotations),
            definition_digest=tool.definition_digest,
            policy_revision=plan.gates.revision,
            budget_ms=int(plan.timeout_of(tool.server) * 1000),
            ttl_ms=ttl_ms if ttl_ms is not None else self._default_ttl_ms(request),
            scope_revision=tool.revision,
            keep_result_ms=plan.tasks.keep_result_ms,
        )

    def _default_ttl_ms(self, request: Request) -> int:
        """The ttl of a task whose caller requests none. Tasks of the facade's tools have their own default."""
        tasks = self.lookup.plan.value.tasks
        own_default_ms = min(tasks.tool_face_default_ttl_ms, tasks.tool_face_max_ttl_ms)
        return own_default_ms if request.inner else tasks.default_ttl_ms

    async def connect_account_first(self, request: Request, tool: ToolRef, needed: AccountNeeded) -> bytes:
        """Ask the person to connect their account at the server, and hold the call as a task until then. Nothing was sent."""
        question = await self.tasks.account_questions.as_result(request, needed, "tools/call", tool.name)
        if question is not None:
            return question
        self._refuse_if_full(request, tool)
        call = self.new_call(request, tool)
        # The answers are for the gateway's own question, not for the server.
        params = {key: value for key, value in call.params.items() if key not in ("requestState", "inputResponses")}
        # A caller that can be asked in a reply was given the page already.
        _task, reply = await self.tasks.hold(request, replace(call, params=params), None, None, asks=False)
        return reply


def check_param_headers(request: Request, tool: ToolRef, arguments: dict[str, Any]) -> None:
    """Arguments that a schema maps to headers must be in the headers with the same values (2026-07-28, transports)."""
    if request.generation is Generation.STATELESS and tool.header_params and request.headers:
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.items()}
        problem = mismatch(tool.header_params, arguments, headers)
        if problem is not None:
            raise CallerError("header_mismatch", problem)
