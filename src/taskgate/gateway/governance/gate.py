"""May this call go out, and if not at once, who must be asked? One answer for tools, resources and prompts.

Use cases come here only where the gates did not simply say `forward`. The answer is None (go on), an approval to hold the call for,
or a refusal, raised as the caller will read it: without a word about rules, policies or people.
"""

from __future__ import annotations

from typing import NoReturn

from taskgate.core.audit import AuditEntry, revisions
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.governance.decision import Decision, Denied, Forward, NeedsApproval
from taskgate.core.identity import Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.governance.evaluate import Asked, evaluate, tell_note
from taskgate.gateway.governance.recheck import PreSendRecheck, schema_of
from taskgate.gateway.governance.record_calls import CallRecorder
from taskgate.gateway.plan.plan import Live, Plan
from taskgate.gateway.requests.caller_keys import arguments_digest
from taskgate.gateway.requests.request import Request
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.store import Store
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

_UNKNOWN = {
    PatternKind.TOOL: ("unknown_tool", "There is no tool {name!r} here. tools/list shows what can be called."),
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

    def for_tool(self, request: Request, tool: ToolRef) -> ApprovalRequest | None:
        """The approval that this call must be held for, or None if it may go."""
        asked = _asked(request.caller, tool, bytes(request.members().get("arguments", Raw(b"{}"))))
        return self.settle(request, asked, tool.decision, tool.wire)

    def settle(self, request: Request, asked: Asked, decision: Decision, shown: str) -> ApprovalRequest | None:
        grants, asked_servers = self.approvals.grants.current, bool(request.narrowing.server_lists)
        try:
            settled = evaluate(self._plan.value, asked, decision, grants, self._store.now_ms())
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
        return CallerError(error_type, text.format(name=shown[:120]))
    text = f"The call to {shown[:120]!r} is not permitted here. It was not executed."
    return CallerError(denied.error_type, text, gate=denied.gate.value, data={"tool": shown[:120]})


def _asked(caller: Caller, tool: ToolRef, arguments: bytes) -> Asked:
    entry = tool.entry
    return Asked(
        caller.principal,
        caller.roles,
        caller.scope,
        tool.server,
        tool.name,
        arguments,
        entry.digest if entry is not None else "",
        PatternKind.TOOL,
        schema_of(entry),
        tool.revision,
        caller.facts,
    )
