"""Record a sample of the calls, so that changed rules can be tried on them (`governance.record`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.governance.decision import Action, Decision, action_of
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.identity.caller import Caller
from taskgate.core.patterns import PatternKind
from taskgate.gateway.catalog.tool_entries import schema_of
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.evaluate import read_arguments
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.governing import RecordSettings
from taskgate.gateway.plan import Live, Plan
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.usage_store import UsageStore
from taskgate.telemetry.logs import log

MAX_PER_ROUND: Final = 200
MAX_BYTES: Final = 16 * 1024
"""Maximum size of the arguments of one call; longer ones are not recorded."""
COUNT_EVERY: Final = 60
"""Rounds after which the number of unrecorded calls is stored."""


@dataclass(frozen=True, slots=True)
class _Seen:
    call: GatedCall
    before: Action
    rule: str
    listed: bool
    server_requested: bool
    too_long: bool = False
    """Whether its arguments exceed the limit."""


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

    def governed(self, call: GatedCall, decision: Decision, *, server_requested: bool) -> None:
        """Record a call decided by a rule, a policy or a grant, or refused because of its arguments."""
        by_grant = decision.rule.startswith("grant ")
        before = Action.APPROVE if by_grant else action_of(decision)
        self._take(call, before, decision.rule, call.definition_digest != "", server_requested)

    def plain(
        self,
        caller: Caller,
        tool: ToolRef,
        arguments: bytes | None,
        server_requested: bool,
        *,
        from_script: bool = False,
    ) -> None:
        """Record a call that was simply forwarded, after its reply. `arguments` is None if they exceed the limit."""
        call = GatedCall(
            caller.principal,
            caller.roles,
            caller.scope,
            tool.server,
            tool.name,
            arguments or b"",
            input_schema=schema_of(tool.entry),
            from_script=from_script,
        )
        listed, too_long = tool.entry is not None, arguments is None
        self._take(call, Action.FORWARD, tool.decision.rule, listed, server_requested, too_long=too_long)

    def not_recorded(self, count: int) -> None:
        """Count calls of which no details were kept."""
        if self.on:
            self._skipped += count

    def _take(
        self,
        call: GatedCall,
        before: Action,
        rule: str,
        listed: bool,
        server_requested: bool,
        *,
        too_long: bool = False,
    ) -> None:
        settings = self._plan.value.governing.record
        if settings is None:
            return
        self._due += settings.sample
        if self._due < 1 or len(self._seen) >= MAX_PER_ROUND:
            self._due = min(self._due, 1.0)
            self._skipped += 1
            return
        self._due -= 1
        too_long = too_long or len(call.arguments) > MAX_BYTES
        kept = replace(call, arguments=b"") if too_long else call
        self._seen.append(_Seen(kept, before, rule, listed, server_requested, too_long))

    def flush(self, *, last: bool = False) -> None:
        """Write the sampled calls. Called once a second, and at shutdown."""
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
        """Parse and redact in a thread: callers can make 200 calls take seconds."""
        try:
            self._store.record_calls(await asyncio.to_thread(make))
        except GatewayFault as problem:
            log.warning("calls not recorded", why=problem.message)

    async def forget_old(self, portions: int) -> bool:
        """Delete up to this many portions of expired records; without the setting all are expired. Return whether more remain."""
        settings = self._plan.value.governing.record
        return await self._store.forget_recorded_calls(settings.keep_ms if settings is not None else 0, portions)


def _all_recorded(plan: Plan, settings: RecordSettings, seen: list[_Seen]) -> list[RecordedCall]:
    return [_recorded(plan, settings, one) for one in seen]


def _recorded(plan: Plan, settings: RecordSettings, seen: _Seen) -> RecordedCall:
    call = seen.call
    recorded = RecordedCall(
        0,
        call.principal,
        tuple(sorted(call.roles)),
        call.scope,
        call.server,
        call.name,
        PatternKind(call.kind),
        seen.before,
        seen.rule,
        listed=seen.listed,
        server_requested=seen.server_requested,
        temporary=call.scope in plan.temporary_scopes,
        from_script=call.from_script,
    )
    if seen.too_long:
        return msgspec.structs.replace(recorded, unread=f"longer than {MAX_BYTES} bytes")
    try:
        value = read_arguments(call)
    except CallerError as problem:
        # A decision that needed the arguments refused the call.
        before = recorded.before if recorded.before is Action.FORWARD else Action.DENY
        return msgspec.structs.replace(recorded, before=before, unread="not readable", ambiguous=problem.message)
    hidden: list[str] = []
    for redaction in (settings.redaction, *plan.governing.redactions.values()):
        redacted = redaction.redact(value)
        value = redacted.value
        hidden += [path for path in redacted.hidden if path not in hidden]
    return msgspec.structs.replace(recorded, arguments=wire.encode(value).decode(), hidden=tuple(hidden))
