"""A sample of the calls, so that changed rules can be tried on them (`governance.record`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.patterns import PatternKind
from taskgate.core.settings.governance import Action
from taskgate.gateway.governance.evaluate import read_arguments
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.plan import Plan

MAX_BYTES: Final = 16 * 1024
"""Maximum size of the arguments of one call; longer ones are not recorded."""


class SampledCall(msgspec.Struct, frozen=True, kw_only=True):
    call: GatedCall
    before: Action
    rule: str
    server_requested: bool
    listed: bool = True
    too_long: bool = False
    """Whether its arguments exceed the limit; then they are not kept."""


class RecordedShare:
    """Which calls are recorded: a fixed share of them, evenly."""

    def __init__(self) -> None:
        self._due = 0.0

    def takes(self, share: float, *, has_room: bool) -> bool:
        self._due += share
        if self._due < 1 or not has_room:
            self._due = min(self._due, 1.0)
            return False
        self._due -= 1
        return True


def recorded_calls(plan: Plan, sampled: Sequence[SampledCall]) -> list[RecordedCall]:
    """The calls as they are stored. Parses and redacts, so it runs in a thread: callers can make 200 calls take seconds."""
    return [_recorded(plan, one) for one in sampled]


def _recorded(plan: Plan, sampled: SampledCall) -> RecordedCall:
    call = sampled.call
    recorded = RecordedCall(
        at_ms=0,
        principal=call.principal,
        roles=tuple(sorted(call.roles)),
        scope=call.scope,
        server=call.server,
        name=call.name,
        kind=PatternKind(call.kind),
        before=sampled.before,
        rule=sampled.rule,
        listed=sampled.listed,
        server_requested=sampled.server_requested,
        temporary=call.scope in plan.temporary_scopes,
        from_script=call.from_script,
        client=call.client,
        generation=call.generation,
        risk=call.risk,
    )
    if sampled.too_long:
        return replace(recorded, unread=f"longer than {MAX_BYTES} bytes")
    try:
        value = read_arguments(call)
    except CallerError as problem:
        # A decision that needed the arguments refused the call.
        before = recorded.before if recorded.before is Action.FORWARD else Action.DENY
        return replace(recorded, before=before, unread="not readable", ambiguous=problem.message)
    hidden: list[str] = []
    settings = plan.governing.record
    own = () if settings is None else (settings.redaction,)
    for redaction in (*own, *plan.governing.redactions.values()):
        redacted = redaction.redact(value)
        value = redacted.value
        hidden += [path for path in redacted.hidden if path not in hidden]
    return replace(recorded, arguments=wire.encode(value).decode(), hidden=tuple(hidden))
