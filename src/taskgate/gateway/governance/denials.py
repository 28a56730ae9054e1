"""What was refused because the caller may not have it leaves a trace: a log line, a metric and an audit row.

A name that is hidden, denied or unknown gets one and the same answer, so an agent that probes learns nothing; whoever runs the
gateway must be able to see the probing all the same. Refusals by rules and policies come from the gate, which knows the rule.
Floods are summed: of each second the first refusals get a row each, the others are counted by caller and reason.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from taskgate.core.audit import AuditEntry
from taskgate.core.errors import TaskgateError
from taskgate.core.identity import Caller
from taskgate.core.scoping.subset import NotAllowed
from taskgate.gateway.requests.request import Request
from taskgate.ports.store import AuditLog
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

ROWS_A_ROUND: Final = 50
KINDS_A_ROUND: Final = 500
_KINDS: Final = {"unknown_tool": "tool", "unknown_resource": "resource", "unknown_prompt": "prompt"}


class Denials:
    def __init__(self, audit: AuditLog, metrics: Metrics) -> None:
        self._audit = audit
        self._metrics = metrics
        self._rows = 0
        self._more: Counter[tuple[str, str, str, str, str]] = Counter()

    def request_refused(self, request: Request, problem: TaskgateError) -> None:
        """One request that asked for something its caller does not see; other refusals are passed over."""
        kind = _KINDS.get(problem.error_type)
        if kind is None or problem.gate is not None:
            return
        asked = request.params.get("name") or request.params.get("uri")
        name = asked[:200] if type(asked) is str else ""
        self._note(request.caller, problem.error_type, kind, name, "not in what this caller sees")

    def session_refused(self, caller: Caller, problem: NotAllowed) -> None:
        """A session that asked for servers beyond its scope."""
        self._note(caller, "not_allowed", "session", "", str(problem)[:500])

    def _note(self, caller: Caller, error_type: str, kind: str, name: str, reason: str) -> None:
        self._metrics.denied.add(error_type)
        log.info(
            "denied",
            principal=caller.principal,
            scope=caller.scope,
            kind=kind,
            name=name,
            error_type=error_type,
            why=reason,
        )
        self._row(
            AuditEntry(
                0,
                "denied",
                caller.principal,
                caller.scope,
                name=name,
                kind=kind,
                decision=error_type,
                reason=reason,
            )
        )

    def call_refused(self, entry: AuditEntry) -> None:
        """A call that a rule, a policy or a pin refused; whoever knows which has logged and counted it."""
        self._row(entry)

    def _row(self, entry: AuditEntry) -> None:
        if self._rows < ROWS_A_ROUND:
            self._rows += 1
            self._audit.record(entry)
        elif len(self._more) < KINDS_A_ROUND:
            self._more[entry.event, entry.principal, entry.scope, entry.decision, entry.rule] += 1
        else:
            self._more[entry.event, "", "", "", ""] += 1

    def flush(self) -> None:
        """Called once a second, and at the end."""
        more, self._more, self._rows = self._more, Counter(), 0
        for (event, principal, scope, decision, rule), count in more.items():
            reason = f"{count} more refusals of this kind"
            self._audit.record(AuditEntry(0, event, principal, scope, rule=rule, decision=decision, reason=reason))
