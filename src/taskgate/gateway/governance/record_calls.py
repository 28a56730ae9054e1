"""Calls put on record, if the operator wants that, so that changed rules can be tried on them: sampled, redacted, bounded.

Nothing is read or written while a call is on its way. Plain calls come from what the call log keeps of each second anyway, governed
ones leave their bytes here; once a second they are read, redacted and handed to the store. What was seen but
not recorded is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.governance.decision import Action, Decision, action_of
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.identity import Caller
from taskgate.core.patterns import PatternKind
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.evaluate import Asked, read_arguments
from taskgate.gateway.governance.recheck import schema_of
from taskgate.gateway.plan.plan import Live, Plan, RecordSettings
from taskgate.ports.store import UsageStore

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


class CallRecorder:
    def __init__(self, store: UsageStore, plan: Live[Plan]) -> None:
        self._store = store
        self._plan = plan
        self._seen: list[_Seen] = []
        self._due = 0.0
        self._skipped = 0
        self._rounds = 0

    @property
    def on(self) -> bool:
        return self._plan.value.governing.record is not None

    def governed(self, asked: Asked, decision: Decision, *, asked_servers: bool) -> None:
        """A call that a rule, a policy or a grant decided about, or could not because of its arguments."""
        by_grant = decision.rule.startswith("grant ")
        before = Action.APPROVE if by_grant else action_of(decision)
        self._take(asked, before, decision.rule, asked.definition_digest != "", asked_servers)

    def plain(self, caller: Caller, tool: ToolRef, arguments: bytes, asked_servers: bool) -> None:
        """A call that was simply forwarded, some time after it was answered."""
        asked = Asked(
            caller.principal,
            caller.roles,
            caller.scope,
            tool.server,
            tool.name,
            arguments,
            input_schema=schema_of(tool.entry),
        )
        self._take(asked, Action.FORWARD, tool.decision.rule, tool.entry is not None, asked_servers)

    def not_recorded(self, count: int) -> None:
        """So many more calls were seen of which nothing is known any more."""
        if self.on:
            self._skipped += count

    def _take(self, asked: Asked, before: Action, rule: str, listed: bool, asked_servers: bool) -> None:
        settings = self._plan.value.governing.record
        if settings is None:
            return
        self._due += settings.sample
        if self._due < 1 or len(self._seen) >= MOST_A_ROUND:
            self._due = min(self._due, 1.0)
            self._skipped += 1
            return
        self._due -= 1
        self._seen.append(_Seen(asked, before, rule, listed, asked_servers))

    def flush(self, *, last: bool = False) -> None:
        """Called once a second, and at the end."""
        plan = self._plan.value
        seen, self._seen = self._seen, []
        self._rounds += 1
        made = [_recorded(plan, plan.governing.record, one) for one in seen if plan.governing.record is not None]
        if self._skipped and (last or self._rounds >= COUNT_EVERY):
            made.append(RecordedCall(0, count=self._skipped))
            self._skipped, self._rounds = 0, 0
        if made:
            self._store.record_calls(made)

    async def forget_old(self) -> None:
        """What is past its time goes; without the setting all of it is."""
        settings = self._plan.value.governing.record
        await self._store.forget_recorded_calls(settings.keep_ms if settings is not None else 0)


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
    if len(asked.arguments) > MOST_BYTES:
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
