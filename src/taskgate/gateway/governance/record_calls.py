"""Calls put on record so that changed rules can be tried on them, and the trace of what was refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.governance.decision import Action, Decision, action_of
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.identity.caller import ANONYMOUS, Caller
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.subset import NotAllowed
from taskgate.gateway.catalog.unseen import Unseen, UnseenNames
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.evaluate import Asked, read_arguments, schema_of
from taskgate.gateway.plan import Live, Plan, RecordSettings
from taskgate.gateway.requests.request import Request
from taskgate.ports.store import AuditLog, UsageStore
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

MOST_A_ROUND: Final = 200
MOST_BYTES: Final = 16 * 1024
"""Of the arguments of one call; longer ones are not kept."""
COUNT_EVERY: Final = 60
"""Rounds after which the number of calls that were not recorded is written down."""


@dataclass(frozen=True, slots=True)
class _Seen:
    asked: Asked
    before: Action
    rule: str
    listed: bool
    asked_servers: bool
    too_long: bool = False
    """Its arguments are longer than what is kept."""


_Make = Callable[[], list[RecordedCall]]


class CallRecorder:
    def __init__(self, store: UsageStore, plan: Live[Plan]) -> None:
        self._store = store
        self._plan = plan
        self._seen: list[_Seen] = []
        self._due = 0.0
        self._skipped = 0
        self._rounds = 0
        self._jobs: dict[asyncio.Task[None], _Make] = {}

    @property
    def on(self) -> bool:
        return self._plan.value.governing.record is not None

    def governed(self, asked: Asked, decision: Decision, *, asked_servers: bool) -> None:
        """A call that a rule, a policy or a grant decided about, or could not because of its arguments."""
        by_grant = decision.rule.startswith("grant ")
        before = Action.APPROVE if by_grant else action_of(decision)
        self._take(asked, before, decision.rule, asked.definition_digest != "", asked_servers)

    def plain(self, caller: Caller, tool: ToolRef, arguments: bytes | None, asked_servers: bool) -> None:
        """A call that was simply forwarded, some time after it was answered. None: its arguments are longer than what is kept."""
        asked = Asked(
            caller.principal,
            caller.roles,
            caller.scope,
            tool.server,
            tool.name,
            arguments or b"",
            input_schema=schema_of(tool.entry),
        )
        listed, too_long = tool.entry is not None, arguments is None
        self._take(asked, Action.FORWARD, tool.decision.rule, listed, asked_servers, too_long=too_long)

    def not_recorded(self, count: int) -> None:
        """So many more calls were seen of which nothing is known any more."""
        if self.on:
            self._skipped += count

    def _take(
        self, asked: Asked, before: Action, rule: str, listed: bool, asked_servers: bool, *, too_long: bool = False
    ) -> None:
        settings = self._plan.value.governing.record
        if settings is None:
            return
        self._due += settings.sample
        if self._due < 1 or len(self._seen) >= MOST_A_ROUND:
            self._due = min(self._due, 1.0)
            self._skipped += 1
            return
        self._due -= 1
        too_long = too_long or len(asked.arguments) > MOST_BYTES
        kept = replace(asked, arguments=b"") if too_long else asked
        self._seen.append(_Seen(kept, before, rule, listed, asked_servers, too_long))

    def flush(self, *, last: bool = False) -> None:
        """Called once a second, and at the end."""
        plan = self._plan.value
        seen, self._seen = self._seen, []
        self._rounds += 1
        settings = plan.governing.record
        make = partial(_all_recorded, plan, settings, seen) if settings is not None and seen else None
        if self._skipped and (last or self._rounds >= COUNT_EVERY):
            self._store.record_calls([RecordedCall(0, count=self._skipped)])
            self._skipped, self._rounds = 0, 0
        if last:
            self._record_now(*self._give_up_jobs(), make)
        elif make is not None:
            job = asyncio.get_running_loop().create_task(self._record(make))
            self._jobs[job] = make
            job.add_done_callback(lambda ended: self._jobs.pop(ended, None))

    def _give_up_jobs(self) -> list[_Make]:
        unfinished = [(job, make) for job, make in self._jobs.items() if not job.done()]
        for job, _ in unfinished:
            job.cancel()
        return [make for _, make in unfinished]

    def _record_now(self, *makes: _Make | None) -> None:
        for make in makes:
            if make is not None:
                self._store.record_calls(make())

    async def _record(self, make: _Make) -> None:
        """Reading and redacting 200 calls may take seconds, if that is what their callers want: it is done beside the loop."""
        try:
            self._store.record_calls(await asyncio.to_thread(make))
        except GatewayFault as problem:
            log.warning("calls not recorded", why=problem.message)

    async def forget_old(self, portions: int) -> bool:
        """Forget so many portions of what is past its time, which is all of it without the setting; whether there may be more."""
        settings = self._plan.value.governing.record
        return await self._store.forget_recorded_calls(settings.keep_ms if settings is not None else 0, portions)


def _all_recorded(plan: Plan, settings: RecordSettings, seen: list[_Seen]) -> list[RecordedCall]:
    return [_recorded(plan, settings, one) for one in seen]


def _recorded(plan: Plan, settings: RecordSettings, seen: _Seen) -> RecordedCall:
    asked = seen.asked
    call = RecordedCall(
        0,
        asked.principal,
        tuple(sorted(asked.roles)),
        asked.scope,
        asked.server,
        asked.name,
        PatternKind(asked.kind),
        seen.before,
        seen.rule,
        listed=seen.listed,
        asked_servers=seen.asked_servers,
        temporary=asked.scope in plan.temporary_scopes,
    )
    if seen.too_long:
        return msgspec.structs.replace(call, unread=f"longer than {MOST_BYTES} bytes")
    try:
        value = read_arguments(asked)
    except CallerError as problem:
        # Wherever its arguments mattered it was refused.
        before = call.before if call.before is Action.FORWARD else Action.DENY
        return msgspec.structs.replace(call, before=before, unread="not readable", ambiguous=problem.message)
    hidden: list[str] = []
    for redaction in (settings.redaction, *plan.governing.redactions.values()):
        redacted = redaction.redact(value)
        value = redacted.value
        hidden += [path for path in redacted.hidden if path not in hidden]
    return msgspec.structs.replace(call, arguments=wire.encode(value).decode(), hidden=tuple(hidden))


# What was refused because the caller may not have it leaves a trace: a log line, a metric and an audit row.
#
# A name that is hidden, denied or unknown gets one and the same answer, so an agent that probes learns nothing; whoever
# runs the gateway must be able to see the probing all the same. Refusals by rules and policies come from the gate,
# which knows the rule. A refusal of an authenticated caller is always a row of its own; those of anonymous callers are
# summed in a flood: of each second the first get a row each, the others are counted by caller and reason.

ROWS_A_ROUND: Final = 50
KINDS_A_ROUND: Final = 500
_KINDS: Final = {
    "unknown_tool": PatternKind.TOOL,
    "unknown_resource": PatternKind.RESOURCE,
    "unknown_prompt": PatternKind.PROMPT,
    "unknown_server": PatternKind.TOOL,
}
_SUBJECTS: Final = {PatternKind.TOOL: "tool", PatternKind.RESOURCE: "uri", PatternKind.PROMPT: "prompt"}


class RecordedRefusal(CallerError):
    """A refusal that has its audit row, log line and count already, from where the rule is known."""


class Denials:
    def __init__(self, audit: AuditLog, metrics: Metrics, unseen: UnseenNames) -> None:
        self._audit = audit
        self._metrics = metrics
        self._unseen = unseen
        self._rows = 0
        self._more: Counter[tuple[str, str, str, str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()
        """Failed authentications by address and reason."""

    def request_refused(self, request: Request, problem: TaskgateError) -> None:
        """One request that asked for something its caller does not see; other refusals are passed over."""
        kind = _KINDS.get(problem.error_type)
        if kind is None or problem.gate is not None or isinstance(problem, RecordedRefusal):
            return
        server, shown = _subject(request, problem, kind)
        found = self._unseen.explain(request.caller, request.narrowing, kind, shown, server=server)
        self._note(request.caller, problem.error_type, kind.value, found)

    def session_refused(self, caller: Caller, problem: NotAllowed) -> None:
        """A session that asked for servers beyond its scope."""
        servers = ", ".join(problem.data["servers"])
        self._note(caller, "not_allowed", "session", Unseen(servers, "", str(problem)))

    def access_refused(self, principal: str, scope: str, access: str, reason: str) -> None:
        """A verified credential that is not good for what its holder asked for."""
        self._metrics.denied.add(reason)
        log.info("access denied", principal=principal, scope=scope, access=access, why=reason)
        self._row(AuditEntry(0, "access_denied", principal, scope, kind=access, decision=reason))

    def authentication_failed(self, address: str, reason: str) -> None:
        """A credential that proves nothing. These rows are summed by address, because anyone can cause them."""
        self._metrics.denied.add(reason)
        if len(self._failed) < KINDS_A_ROUND or (address, reason) in self._failed:
            self._failed[address, reason] += 1
        else:
            self._failed["", reason] += 1

    def _note(self, caller: Caller, error_type: str, kind: str, found: Unseen) -> None:
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
            )
        )

    def call_refused(self, entry: AuditEntry) -> None:
        """A call that a rule, a policy or a pin refused; whoever knows which has logged and counted it."""
        self._row(entry)

    def _row(self, entry: AuditEntry) -> None:
        if entry.principal != ANONYMOUS:
            self._audit.record(entry)
        elif self._rows < ROWS_A_ROUND:
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
        failed, self._failed = self._failed, Counter()
        for (address, reason), count in failed.items():
            log.info("authentication failed", address=address or "several", why=reason, count=count)
            told = f"{count} from {address}" if address else f"{count} from other addresses"
            self._audit.record(AuditEntry(0, "authentication_failed", kind="credential", decision=reason, reason=told))


def _subject(request: Request, problem: TaskgateError, kind: PatternKind) -> tuple[str, str]:
    """The server, if the caller named one, and the name that a request was refused for. Our own tools name both in their arguments,
    and the error repeats what it is about."""
    params, server, named = request.params, problem.data.get("server"), problem.data.get(_SUBJECTS[kind])
    if named is None and type(server) is str:
        arguments = params.get("arguments")
        named = (arguments.get("tool") or arguments.get("uri")) if type(arguments) is dict else None
    elif named is None:
        named = params.get("name") or params.get("uri")
    return server if type(server) is str else "", named[:500] if type(named) is str else ""
