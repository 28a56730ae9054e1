"""May this call go out, and if not at once, who must be asked? One answer for tools, resources and prompts.

Use cases come here only where the gates did not simply say `forward`. The answer is None (go on), an approval to hold the call for,
or a refusal, raised as the caller will read it: without a word about rules, policies or people.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NoReturn

from taskgate import clock
from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.governance.approval import CallDispatched, Changed, State
from taskgate.core.governance.decision import Decision, Denied, Forward, NeedsApproval
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.events import ApprovalOpened, EventHub
from taskgate.gateway.governance.announce import audit_of
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.evaluate import Asked, PreSendRecheck, asked_of_tool, evaluate, tell_note
from taskgate.gateway.governance.record_calls import CallRecorder, Denials, RecordedRefusal
from taskgate.gateway.plan import Live, Plan, pending_limits
from taskgate.gateway.requests.heartbeat import Heartbeat
from taskgate.gateway.requests.limit_errors import limit_error
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import READ_AT_ONCE, arguments_digest, read_ahead
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.methods import KEEP_ALIVE_S
from taskgate.ports.approval_store import ApprovalRequest, Decided, HeldCall
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TooManyOpen
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

_UNKNOWN = {
    PatternKind.TOOL: ("unknown_tool", "There is no tool {name!r} here. tools/list returns the available tools."),
    PatternKind.RESOURCE: ("unknown_resource", "There is no such resource here."),
    PatternKind.PROMPT: ("unknown_prompt", "There is no prompt {name!r} here."),
}


class CallGate:
    def __init__(
        self,
        store: Store,
        plan: Live[Plan],
        approvals: Approvals,
        recheck: PreSendRecheck,
        metrics: Metrics,
        *,
        denials: Denials,
        recorder: CallRecorder,
    ) -> None:
        self._recorder = recorder
        self.approvals = approvals
        self.pre_send = recheck
        self._store = store
        self._plan = plan
        self._metrics = metrics
        self._denials = denials

    async def for_tool(self, request: Request, tool: ToolRef) -> ApprovalRequest | None:
        """The approval that this call must be held for, or None if it may go."""
        asked = asked_of_tool(request.caller, tool, bytes(request.members().get("arguments", Raw(b"{}"))))
        return await self.settle(request, asked, tool.decision, tool.wire)

    async def settle(self, request: Request, asked: Asked, decision: Decision, shown: str) -> ApprovalRequest | None:
        grants, asked_servers = self.approvals.grants.current, bool(request.narrowing.server_lists)
        try:
            evaluated = partial(evaluate, self._plan.value, asked, decision, grants, self._store.now_ms())
            if len(asked.arguments) <= READ_AT_ONCE:
                settled = evaluated()
            else:
                # Policies look at large arguments beside the event loop, like the recheck on the store's thread.
                await read_ahead(asked.arguments)
                settled = await asyncio.to_thread(evaluated)
        except CallerError:
            self._recorder.governed(asked, decision, asked_servers=asked_servers)
            raise
        self._recorder.governed(asked, settled, asked_servers=asked_servers)
        if isinstance(settled, Denied):
            self._refuse(asked, settled, shown)
        if isinstance(settled, NeedsApproval):
            return self.approvals.request(asked, settled, request.caller_key, shown, request.caller.limit_key)
        self._let_go(asked, settled)
        return None

    def _refuse(self, asked: Asked, denied: Denied, shown: str) -> NoReturn:
        self._metrics.denied.add(denied.gate.value)
        log.info("denied", name=asked.name, server=asked.server, caller=asked.principal, why=denied.reason)
        self._denials.call_refused(self._entry(asked, "call_denied", denied.rule, denied.error_type, denied.reason))
        raise refusal(denied, asked.kind, shown)

    def _let_go(self, asked: Asked, settled: Forward) -> None:
        tell_note(settled, asked.name, asked.principal)
        if settled.note is not None:
            self._store.record(self._entry(asked, settled.note.value.lower(), settled.rule, "forward", settled.reason))
        elif settled.rule.startswith("grant "):
            self._store.record(self._entry(asked, "grant_used", settled.rule, "forward", ""))

    def _entry(self, asked: Asked, event: str, rule: str, decision: str, reason: str) -> AuditEntry:
        return AuditEntry(
            0,
            event,
            asked.principal,
            asked.scope,
            asked.server,
            asked.name,
            asked.kind.value,
            arguments_digest(asked.arguments),
            rule=rule,
            decision=decision,
            policy_revision=revisions(self._plan.value.gates.revision, asked.scope_revision),
            reason=reason,
        )


def refusal(denied: Denied, kind: PatternKind, shown: str) -> TaskgateError:
    """What a caller hears: the same for hidden and unknown, and never why."""
    if denied.error_type == "unknown_tool":
        error_type, text = _UNKNOWN[kind]
        return RecordedRefusal(error_type, text.format(name=shown[:120]))
    text = f"The call to {shown[:120]!r} is not permitted here. It was not executed."
    return CallerError(denied.error_type, text, gate=denied.gate.value, data={"tool": shown[:120]})


# Resources and prompts that people must agree to: the request is held, because there is no task it could become.
#
# When the time of the request is up before anybody has decided, the caller is told to ask again later. The question
# stays open meanwhile, and the same request, asked again, waits for the same answer or uses it: also after a restart, and
# at any gateway on the same store.

MAX_REMEMBERED: Final = 10_000


class HeldReadings:
    def __init__(self, gate: CallGate, tasks: TaskEngine, plan: Live[Plan], events: EventHub) -> None:
        self._gate = gate
        self._approvals: Approvals = gate.approvals
        self._tasks = tasks
        self._store = tasks.store
        self._events = events
        self._plan = plan
        self._open: dict[tuple[str, ...], str] = {}

    async def permit(self, request: Request, asked: Asked, decision: Decision, shown: str) -> None:
        """Returns when the reading may go on; raises when it may not."""
        if type(decision) is Forward and decision.note is None:
            return
        approval = await self._gate.settle(request, asked, decision, shown)
        if approval is not None:
            await self._agreed(request, asked, decision, approval)

    async def _agreed(self, request: Request, asked: Asked, decision: Decision, approval: ApprovalRequest) -> None:
        key = _key(approval)
        approval_id = await self._known(key)
        if approval_id is None:
            approval_id = await self._ask(request, approval, key)
        held = await self._wait(request, approval_id, approval.wire_name)
        if held.approval.state is State.OPEN:
            raise CallerError(
                "approval_pending",
                f"Nobody has decided about {approval.wire_name[:120]!r} yet. Ask again later; the question stays open.",
                gate="approval",
                data={"approval_id": approval_id},
            )
        self._open.pop(key, None)
        await self._spend(held, asked)

    async def _known(self, key: tuple[str, ...]) -> str | None:
        known = self._open.get(key)
        held = await self._store.held(known) if known is not None else None
        return known if held is not None and held.approval.state in (State.OPEN, State.APPROVED) else None

    async def _ask(self, request: Request, approval: ApprovalRequest, key: tuple[str, ...]) -> str:
        pending = pending_limits(self._plan.value.limits)
        # Of callers without an identity the store cannot tell one from another.
        joins = approval.binding.principal != ANONYMOUS
        audit = audit_of(self._plan.value, approval)
        held = await self._store.hold(approval, pending=pending, audit=audit, joins=joins)
        if isinstance(held, TooManyOpen):
            raise limit_error(held, "Wait for some to be decided.")
        if not isinstance(held, HeldCall):
            raise GatewayFault("store_unavailable", "Another process has taken over the store.")
        if len(self._open) >= MAX_REMEMBERED:
            self._open.clear()
        self._open[key] = held.approval.id
        if held.approval.id == approval.id:
            self._events.publish(ApprovalOpened(None, approval, request))
        return held.approval.id

    async def _wait(self, request: Request, approval_id: str, shown: str) -> HeldCall:
        delivery_mode = self._tasks.promotions.delivery_mode(request)
        settings = self._plan.value.calls.delivery
        wait_s = delivery_mode.wait_s if delivery_mode.wait_s is not None else settings.hold_s
        beat = Heartbeat(request, settings.heartbeat_s, f"Waiting for approval of {shown}")
        beat.start()
        end = clock.monotonic() + wait_s
        try:
            while True:
                left = end - clock.monotonic()
                held = await self._approvals.settled(approval_id, max(0.0, min(left, KEEP_ALIVE_S)))
                if held is None:
                    raise CallerError("approval_expired", "The approval is no longer kept; ask again.", gate="approval")
                if held.approval.state is not State.OPEN or left <= 0 or self._tasks.draining:
                    return held
                if left > KEEP_ALIVE_S:
                    request.delivery.outlet.hold_open()
        finally:
            beat.stop()

    async def _spend(self, held: HeldCall, asked: Asked) -> None:
        """Look once more, then use the approval up; only then may a byte go out."""
        approval = held.approval
        if approval.state is State.DENIED:
            said = f": {approval.reason}" if approval.reason else "."
            raise CallerError("approval_rejected", f"The request was denied{said}", gate="approval")
        passed_ms = self._approvals.expiries.passed_ms(approval)
        plan, now = self._plan.value, max(self._store.now_ms(), passed_ms)
        stopped = self._gate.pre_send.recheck(
            plan, approval, asked, self._gate.pre_send.evaluated(plan, asked, now), now
        )
        if stopped is not None:
            raise CallerError(stopped.error_type, f"{stopped.reason} It was not executed.", gate="approval")
        workflow = self._approvals.workflow(approval.workflow)
        used = await self._store.change_held(approval.id, workflow, CallDispatched(0), not_before_ms=passed_ms)
        if not isinstance(used, Decided) or not isinstance(used.outcome, Changed):
            raise CallerError("approval_expired", "The approval was used or is over; ask again.", gate="approval")


def _key(approval: ApprovalRequest) -> tuple[str, ...]:
    bound = approval.binding
    return (approval.caller, bound.kind.value, bound.server, bound.tool, bound.arguments_digest)
