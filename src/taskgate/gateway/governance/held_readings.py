"""Hold requests for resources and prompts that need approval. They cannot become tasks, so the request itself waits.

If the request times out before a decision, the caller gets an error that asks it to repeat the request later. The approval request
stays open, and the repeated request waits for the same decision or uses it, also after a restart and at any gateway on the same
store.
"""

from __future__ import annotations

from typing import Final

from taskgate import clock
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.governance.approval import CallDispatched, Changed, Drifted, State
from taskgate.core.governance.decision import Decision, Forward
from taskgate.core.governance.held_call import ApprovalRequest, HeldCall
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.gateway.events import ApprovalOpened, EventHub
from taskgate.gateway.governance.approval_request import audit_of
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.limits import pending_limits
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.heartbeat import Heartbeat
from taskgate.gateway.requests.limit_errors import limit_error
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.methods import KEEP_ALIVE_S
from taskgate.ports.store_answers import TooManyOpen
from taskgate.store.operations.approvals import ChangeHeld, Decided, FindHeld, HoldCall

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

    async def permit(self, request: Request, call: GatedCall, decision: Decision, shown: str) -> None:
        """Return when the request may be sent. Raises CallerError if it may not."""
        if type(decision) is Forward and decision.note is None:
            return
        approval = await self._gate.settle(request, call, decision, shown)
        if approval is not None:
            await self._agreed(request, call, decision, approval)

    async def _agreed(self, request: Request, call: GatedCall, decision: Decision, approval: ApprovalRequest) -> None:
        key = _key(approval)
        approval_id = await self._known(key)
        if approval_id is None:
            approval_id = await self._ask(request, approval, key)
        held = await self._wait(request, approval_id, approval.wire_name)
        if held.approval.state is State.OPEN:
            raise CallerError(
                "approval_pending",
                f"{approval.wire_name[:120]!r} is not approved yet. Retry later; the request stays open.",
                gate="approval",
                data={"approval_id": approval_id},
            )
        self._open.pop(key, None)
        await self._spend(held, call)

    async def _known(self, key: tuple[str, ...]) -> str | None:
        known = self._open.get(key)
        held = await self._store.ask(FindHeld(known)) if known is not None else None
        return known if held is not None and held.approval.state in (State.OPEN, State.APPROVED) else None

    async def _ask(self, request: Request, approval: ApprovalRequest, key: tuple[str, ...]) -> str:
        pending = pending_limits(self._plan.value.limits)
        # The store cannot distinguish callers without an identity.
        joins = approval.binding.principal != ANONYMOUS
        audit = audit_of(self._plan.value, approval)
        held = await self._store.do(HoldCall(approval, pending=pending, audit=audit, joins=joins))
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
        settings = self._plan.value.tasks
        wait_s = delivery_mode.wait_s if delivery_mode.wait_s is not None else settings.hold_ms / 1000
        beat = Heartbeat(request, settings.heartbeat_ms / 1000, f"Waiting for approval of {shown}")
        beat.start(at_once=True)
        end = clock.monotonic() + wait_s
        try:
            while True:
                left = end - clock.monotonic()
                held = await self._approvals.settled(approval_id, max(0.0, min(left, KEEP_ALIVE_S)))
                if held is None:
                    raise CallerError(
                        "approval_expired", "The approval has been deleted. Send the request again.", gate="approval"
                    )
                if held.approval.state is not State.OPEN or left <= 0 or self._tasks.draining:
                    return held
                if left > KEEP_ALIVE_S:
                    request.delivery.outlet.hold_open()
        finally:
            beat.stop()

    async def _spend(self, held: HeldCall, call: GatedCall) -> None:
        """Recheck and consume the approval. Only then may a byte be sent."""
        approval = held.approval
        if approval.state is State.DENIED:
            reason = f": {approval.reason}" if approval.reason else "."
            raise CallerError("approval_rejected", f"The request was denied{reason}", gate="approval")
        passed_ms = self._approvals.expiries.passed_ms(approval)
        plan, now = self._plan.value, max(self._store.now_ms(), passed_ms)
        stopped = self._gate.pre_send.recheck(plan, approval, call, self._gate.pre_send.evaluated(plan, call, now), now)
        workflow = self._approvals.workflow(approval.workflow)
        if stopped is not None:
            why = f"{stopped.error_type}: {stopped.detail or stopped.reason}"
            await self._store.do(ChangeHeld(approval.id, workflow, Drifted(0, stopped.error_type, why)))
            raise CallerError(stopped.error_type, f"{stopped.reason} It was not executed.", gate="approval")
        used = await self._store.do(ChangeHeld(approval.id, workflow, CallDispatched(0), not_before_ms=passed_ms))
        if not isinstance(used, Decided) or not isinstance(used.outcome, Changed):
            raise CallerError(
                "approval_expired", "The approval was used or has ended. Send the request again.", gate="approval"
            )


def _key(approval: ApprovalRequest) -> tuple[str, ...]:
    bound = approval.binding
    return (approval.caller, bound.kind.value, bound.server, bound.tool, bound.arguments_digest)
