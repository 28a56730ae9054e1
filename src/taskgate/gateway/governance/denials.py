"""Record refusals of names that the caller may not use: a log line, a metric and an audit entry.

A name that is hidden, denied or unknown gets the same reply, so a probing agent learns nothing; the operator must still be able
to see the probing. Refusals by rules and policies come from the gate, which knows the rule. Each refusal of an authenticated
caller gets its own audit entry. Those of anonymous callers are limited: per second the first ones get an entry each, and the
rest are counted by caller and reason.
"""

from __future__ import annotations

from typing import Final

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.identity.caller import Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.subset import NotAllowed
from taskgate.gateway.catalog.unseen import Unseen, UnseenNames
from taskgate.gateway.governance.journal import Journal
from taskgate.gateway.requests.request import Request
from taskgate.ports.call_failure import NotListed
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

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
    def __init__(self, journal: Journal, metrics: Metrics, unseen: UnseenNames) -> None:
        self._journal = journal
        self._metrics = metrics
        self._unseen = unseen

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
            at_ms=0,
            event="call",
            principal=caller.principal,
            scope=caller.scope,
            server=problem.server[:200],
            name=tool[:200],
            decision=problem.error_type,
            reason=problem.message[:500],
            outcome="error",
            executed=str(problem.executed),
        )
        self._journal.not_sent(entry, request)

    def session_refused(self, caller: Caller, problem: NotAllowed) -> None:
        """Record a session that requested servers outside its scope."""
        servers = ", ".join(problem.data["servers"])
        self._note(caller, "not_allowed", "session", Unseen(servers, "", str(problem)))

    def access_refused(self, principal: str, scope: str, access: str, reason: str) -> None:
        """Record a verified credential that does not permit the requested access."""
        self._metrics.denied.add(reason)
        log.info("access denied", principal=principal, scope=scope, access=access, why=reason)
        self._journal.denied(AuditEntry(0, "access_denied", principal, scope, kind=access, decision=reason), None)

    def authentication_failed(self, address: str, reason: str) -> None:
        """Record an invalid credential."""
        self._metrics.denied.add(reason)
        self._journal.authentication_failed(address, reason)

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
        self._journal.denied(
            AuditEntry(
                at_ms=0,
                event="denied",
                principal=caller.principal,
                scope=caller.scope,
                server=found.server[:200],
                name=found.name[:200],
                kind=kind,
                rule=found.rule,
                decision=error_type,
                reason=found.reason[:500],
            ),
            request,
        )

    def call_refused(self, entry: AuditEntry, request: Request) -> None:
        """Record a call refused by a rule, a policy or a pin. The gate has logged and counted it."""
        self._journal.denied(entry, request)


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
