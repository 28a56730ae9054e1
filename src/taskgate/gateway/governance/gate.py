"""Decide whether a call, a resource or a prompt request may be sent, must wait for approval, or is refused.

Use cases call this only if the gates did not simply forward. The result is None (send it) or an approval request to wait for. A
refusal is raised as the error that the caller receives, which reveals nothing about rules, policies or approvers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NoReturn

import msgspec

from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.governance.decision import Decision, Denied, Forward, NeedsApproval
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.denials import Denials, RecordedRefusal
from taskgate.gateway.governance.evaluate import evaluate, log_note
from taskgate.gateway.governance.gated_call import GatedCall, gated_tool_call, with_request
from taskgate.gateway.governance.journal import Journal
from taskgate.gateway.governance.pre_send_recheck import PreSendRecheck
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import READ_AT_ONCE, arguments_digest, read_ahead
from taskgate.ports.store import Store
from taskgate.store.operations.audit import RecordAudit
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

_UNKNOWN = {
    PatternKind.TOOL: ("unknown_tool", "There is no tool {name!r} here. tools/list returns the available tools."),
    PatternKind.RESOURCE: ("unknown_resource", "There is no such resource here."),
    PatternKind.PROMPT: ("unknown_prompt", "There is no prompt {name!r} here."),
}


class CallGate(msgspec.Struct, eq=False):
    store: Store
    plan: Live[Plan]
    approvals: Approvals
    pre_send: PreSendRecheck
    metrics: Metrics
    denials: Denials
    journal: Journal

    async def for_tool(self, request: Request, tool: ToolRef) -> ApprovalRequest | None:
        """Return the approval request that this call must wait for, or None if it may be sent."""
        arguments = bytes(request.members().get("arguments", Raw(b"{}")))
        call = gated_tool_call(
            request.caller, tool, arguments, from_script=bool(request.script), script_digest=request.script_digest
        )
        return await self.settle(request, call, tool.decision, tool.wire)

    async def settle(self, request: Request, call: GatedCall, decision: Decision, shown: str) -> ApprovalRequest | None:
        call = with_request(call, request)
        grants, server_requested = self.approvals.grants.current, bool(request.narrowing.server_lists)
        try:
            evaluated = partial(evaluate, self.plan.value, call, decision, grants, self.store.now_ms())
            if len(call.arguments) <= READ_AT_ONCE:
                settled = evaluated()
            else:
                # Large arguments are evaluated in a thread, like the recheck on the store's thread.
                await read_ahead(call.arguments)
                settled = await asyncio.to_thread(evaluated)
        except CallerError:
            self.journal.governed(call, decision, server_requested=server_requested)
            raise
        self.journal.governed(call, settled, server_requested=server_requested)
        if isinstance(settled, Denied):
            self._refuse(request, call, settled, shown)
        if isinstance(settled, NeedsApproval):
            return self.approvals.request(call, settled, request.caller_key, shown, request.caller.limit_key)
        self._record_forwarded(call, settled)
        return None

    def _refuse(self, request: Request, call: GatedCall, denied: Denied, shown: str) -> NoReturn:
        self.metrics.denied.add(denied.gate.value)
        log.info("denied", name=call.name, server=call.server, caller=call.principal, why=denied.reason)
        reason = f"{denied.reason} because {denied.because}" if denied.because else denied.reason
        entry = self._entry(call, "call_denied", denied.rule, denied.error_type, reason)
        self.denials.call_refused(entry, request)
        raise refusal(denied, call.kind, shown)

    def _record_forwarded(self, call: GatedCall, settled: Forward) -> None:
        log_note(settled, call.name, call.principal)
        if settled.note is not None:
            self.store.defer(
                RecordAudit(self._entry(call, settled.note.value.lower(), settled.rule, "forward", settled.reason))
            )
        elif settled.rule.startswith("grant "):
            self.store.defer(RecordAudit(self._entry(call, "grant_used", settled.rule, "forward", "")))

    def _entry(self, call: GatedCall, event: str, rule: str, decision: str, reason: str) -> AuditEntry:
        return AuditEntry(
            at_ms=0,
            event=event,
            principal=call.principal,
            scope=call.scope,
            server=call.server,
            name=call.name,
            kind=call.kind.value,
            arguments_digest=arguments_digest(call.arguments),
            rule=rule,
            decision=decision,
            policy_revision=revisions(self.plan.value.gates.revision, call.scope_revision),
            reason=reason,
        )


def refusal(denied: Denied, kind: PatternKind, shown: str) -> TaskgateError:
    """Return the caller's error. It is the same for hidden and unknown names, and never gives the reason."""
    if denied.error_type == "unknown_tool":
        error_type, text = _UNKNOWN[kind]
        return RecordedRefusal(error_type, text.format(name=shown[:120]))
    text = f"The call to {shown[:120]!r} is not permitted here. It was not executed."
    return CallerError(denied.error_type, text, gate=denied.gate.value, data={"tool": shown[:120]})
