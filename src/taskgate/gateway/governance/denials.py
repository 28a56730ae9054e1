"""Record refusals of names that the caller may not use: a log line, a metric and an audit entry.

A name that is hidden, denied or unknown gets the same reply, so a probing agent learns nothing; the operator must still be able
to see the probing. Refusals by rules and policies come from the gate, which knows the rule. Each refusal of an authenticated
caller gets its own audit entry. Those of anonymous callers are limited: per second the first ones get an entry each, and the
rest are counted by caller and reason.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.identity.caller import ANONYMOUS, Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.subset import NotAllowed
from taskgate.gateway.catalog.unseen import Unseen, UnseenNames
from taskgate.gateway.governance.history_recorder import HistoryRecorder
from taskgate.gateway.governance.usage_counter import UsageCounter
from taskgate.gateway.requests.request import Request
from taskgate.ports.audit_log import AuditLog
from taskgate.ports.call_failure import NotListed
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

ROWS_PER_ROUND: Final = 50
KINDS_PER_ROUND: Final = 500
_KINDS: Final = {
    "unknown_tool": PatternKind.TOOL,
    "unknown_resource": PatternKind.RESOURCE,
    "unknown_prompt": PatternKind.PROMPT,
    "unknown_server": PatternKind.TOOL,
}
_SUBJECTS: Final = {PatternKind.TOOL: "tool", PatternKind.RESOURCE: "uri", PatternKind.PROMPT: "prompt"}


class RecordedRefusal(CallerError):
    """A refusal that was already logged, counted and audited where the rule is known."""


class Denials:
    def __init__(
        self, audit: AuditLog, metrics: Metrics, unseen: UnseenNames, history: HistoryRecorder, usage: UsageCounter
    ) -> None:
        self._history = history
        self._usage = usage
        self._audit = audit
        self._metrics = metrics
        self._unseen = unseen
        self._rows = 0
        self._more: Counter[tuple[str, str, str, str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()
        """Failed authentications by address and reason."""

    def request_refused(self, request: Request, problem: TaskgateError) -> None:
        """Record a request for a name that its caller cannot see, or for a server that is not listed yet. Other refusals are
        ignored here."""
        if isinstance(problem, NotListed):
            self._not_listed(request, problem)
            return
        kind = _KINDS.get(problem.error_type)
        if kind is None or problem.gate is not None or isinstance(problem, RecordedRefusal):
            return
        server, shown = _subject(request, problem, kind)
        found = self._unseen.explain(request.caller, request.narrowing, kind, shown, server=server)
        self._note(request.caller, problem.error_type, kind.value, found, request)

    def _not_listed(self, request: Request, problem: NotListed) -> None:
        arguments = request.params.get("arguments")
        tool = problem.tool or (arguments.get("tool") if type(arguments) is dict else None)
        if type(tool) is not str or not tool:
            return  # no call
        caller = request.caller
        entry = AuditEntry(
            0,
            "call",
            caller.principal,
            caller.scope,
            problem.server[:200],
            tool[:200],
            decision=problem.error_type,
            reason=problem.message[:500],
            outcome="error",
            executed=str(problem.executed),
        )
        self._history.not_sent(entry, request)
        self._audit_row(entry)

    def session_refused(self, caller: Caller, problem: NotAllowed) -> None:
        """Record a session that requested servers outside its scope."""
        servers = ", ".join(problem.data["servers"])
        self._note(caller, "not_allowed", "session", Unseen(servers, "", str(problem)))

    def access_refused(self, principal: str, scope: str, access: str, reason: str) -> None:
        """Record a verified credential that does not permit the requested access."""
        self._metrics.denied.add(reason)
        log.info("access denied", principal=principal, scope=scope, access=access, why=reason)
        self._row(AuditEntry(0, "access_denied", principal, scope, kind=access, decision=reason))

    def authentication_failed(self, address: str, reason: str) -> None:
        """Record an invalid credential. These entries are counted per address, because anyone can cause them."""
        self._metrics.denied.add(reason)
        if len(self._failed) < KINDS_PER_ROUND or (address, reason) in self._failed:
            self._failed[address, reason] += 1
        else:
            self._failed["", reason] += 1

    def _note(self, caller: Caller, error_type: str, kind: str, found: Unseen, request: Request | None = None) -> None:
        self._metrics.denied.add(error_type)
        log.info(
            "denied",
            principal=caller.principal,
            scope=caller.scope,
            kind=kind,
            server=found.server[:200],
            name=found.name[:200],
            error_type=error_type,
            why=found.reason[:500],
        )
        self._row(
            AuditEntry(
                0,
                "denied",
                caller.principal,
                caller.scope,
                found.server[:200],
                found.name[:200],
                kind,
                rule=found.rule,
                decision=error_type,
                reason=found.reason[:500],
            ),
            request,
        )

    def call_refused(self, entry: AuditEntry, request: Request) -> None:
        """Record a call refused by a rule, a policy or a pin. The gate has logged and counted it."""
        self._row(entry, request)

    def _row(self, entry: AuditEntry, request: Request | None = None) -> None:
        self._history.denied(entry, request)
        # The gate knows server and tool; in other refusals they may be invented.
        known = entry.event == "call_denied"
        self._usage.denied(entry.principal, entry.server if known else "", entry.name if known else "")
        self._audit_row(entry)

    def _audit_row(self, entry: AuditEntry) -> None:
        if entry.principal != ANONYMOUS:
            self._audit.record(entry)
        elif self._rows < ROWS_PER_ROUND:
            self._rows += 1
            self._audit.record(entry)
        elif len(self._more) < KINDS_PER_ROUND:
            self._more[entry.event, entry.principal, entry.scope, entry.decision, entry.rule] += 1
        else:
            self._more[entry.event, "", "", "", ""] += 1

    def flush(self) -> None:
        """Write the counted refusals. Called once a second, and at shutdown."""
        more, self._more, self._rows = self._more, Counter(), 0
        failed, self._failed = self._failed, Counter()
        try:
            while more:
                (event, principal, scope, decision, rule), count = next(iter(more.items()))
                reason = f"{count} more refusals of this kind"
                self._audit.record(AuditEntry(0, event, principal, scope, rule=rule, decision=decision, reason=reason))
                del more[event, principal, scope, decision, rule]
            while failed:
                (address, reason), count = next(iter(failed.items()))
                counted = f"{count} from {address}" if address else f"{count} from other addresses"
                self._audit.record(
                    AuditEntry(0, "authentication_failed", kind="credential", decision=reason, reason=counted)
                )
                log.info("authentication failed", address=address or "several", why=reason, count=count)
                del failed[address, reason]
        except GatewayFault as fault:
            # The queue of the store is full: what was counted is written in a later round.
            log.warning("refusals are not in the audit log yet", why=fault.message)
            self._more, self._failed = more, failed


def _subject(request: Request, problem: TaskgateError, kind: PatternKind) -> tuple[str, str]:
    """Return the server, if the caller named one, and the refused name. Own tools have both in their arguments, and the error
    repeats them."""
    params, server, named = request.params, problem.data.get("server"), problem.data.get(_SUBJECTS[kind])
    if named is None and type(server) is str:
        arguments = params.get("arguments")
        named = (arguments.get("tool") or arguments.get("uri")) if type(arguments) is dict else None
    elif named is None:
        named = params.get("name") or params.get("uri")
    return server if type(server) is str else "", named[:500] if type(named) is str else ""
