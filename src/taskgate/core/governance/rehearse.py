"""Evaluate a changed set of rules on recorded calls.

Recorded calls are decided by the same functions as live calls (`compose`, `decide`, `conclude`). If the decision depends on
something that was not recorded, or was redacted, the call is undecided: nothing is guessed. Standing grants are not part of
a set of rules: a call that a grant covered counts as held before, and as held after if it needs approval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Final

import msgspec

from taskgate.core.governance.decision import Action, Decision, Denied, Gate, NeedsApproval, NeedsPolicy, action_of
from taskgate.core.governance.pipeline import UNKNOWN, Gates, PolicyAnswer, conclude, decide, decide_unlisted
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.registry import Registry
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import NO_REQUEST, SessionRequest
from taskgate.core.scoping.subset import Subset, compose
from taskgate.lazy_dataclass import dataclass

UNDECIDED: Final = "cannot tell"
"""The value of `after` in JSON for a call that is undecided. It is part of the API, so it keeps this name."""
NOT_RECORDED: Final = "not recorded"
EXAMPLES: Final = 200
"""Changed calls that a rehearsal lists individually; the others are counted."""


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call as the gates decided it. `before` is the decision at that time; `count` is above 1 only if nothing but the number
    of calls was recorded.
    """

    at_ms: int
    principal: str = ""
    roles: tuple[str, ...] = ()
    scope: str = ""
    server: str = ""
    name: str = ""
    kind: PatternKind = PatternKind.TOOL
    before: Action = Action.FORWARD
    rule: str = ""
    arguments: str | None = None
    """JSON text, redacted; None if it was not recorded."""
    hidden: tuple[str, ...] = ()
    """Redacted paths of the arguments."""
    unread: str = ""
    """Why there are no arguments."""
    ambiguous: str = ""
    """Why the arguments cannot be evaluated: such a call is refused if its decision depends on them."""
    listed: bool = True
    """Whether its server had listed it."""
    server_requested: bool = msgspec.field(default=False, name="asked_servers")
    """Whether its session had requested this server, which need not be a default server of the scope."""
    temporary: bool = False
    """Whether its scope was created at run time and is not in the configuration."""
    count: int = 1
    from_script: bool = False
    """Whether a script made it."""


AskPolicy = Callable[[NeedsPolicy, RecordedCall], PolicyAnswer]


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The gates, servers and scopes of a configuration, and the policy engine that its rules may use."""

    gates: Gates
    registry: Registry
    scopes: Mapping[str, ScopePolicy]
    ask_policy: AskPolicy
    _subsets: dict[tuple[str, str], Subset] = field(default_factory=dict, repr=False)

    def admits(self, call: RecordedCall) -> bool:
        """Whether the scope of the call includes what it names."""
        requested = call.server if call.server_requested else ""
        subset = self._subsets.get((call.scope, requested))
        if subset is None:
            policy = self.scopes.get(call.scope) or ScopePolicy(call.scope, enabled=False)
            narrowing = SessionRequest(((requested,),)) if requested else NO_REQUEST
            subset = self._subsets[call.scope, requested] = compose(self.registry, policy, narrowing, strict=False)
        return subset.admits_kind(call.server, call.name, call.kind)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The decision about one call; `after` is None if it cannot be determined."""

    call: RecordedCall
    after: Action | None
    rule: str
    why: str

    @property
    def changes(self) -> bool:
        return self.after is not None and self.after is not self.call.before

    @property
    def outcome(self) -> str:
        return UNDECIDED if self.after is None else self.after.value


def evaluate_recorded(book: RuleBook, call: RecordedCall) -> Rehearsed:
    """Return the decision of these rules about one recorded call."""
    if not call.server:
        return Rehearsed(call, None, "", NOT_RECORDED)
    if call.temporary:
        return Rehearsed(call, None, "", "its scope was created at run time and is not in the configuration")
    if not book.admits(call):
        return _settled(call, Denied(Gate.VISIBILITY, f"not in the scope {call.scope}", UNKNOWN))
    decision = _by_name(book.gates.for_calls(from_script=call.from_script), call)
    if decision is None:
        return Rehearsed(call, None, "", "its server had not listed it, so it cannot be compared with similar names")
    return _with_arguments(book, call, decision)


def _by_name(gates: Gates, call: RecordedCall) -> Decision | None:
    if call.listed:
        return decide(gates, call.kind, call.server, call.name)
    # What the server listed at that time is not recorded. A refusal does not depend on it; any other decision might
    # have been a refusal.
    decision = decide_unlisted(gates, call.kind, call.server, call.name)
    return decision if isinstance(decision, Denied) else None


def _with_arguments(book: RuleBook, call: RecordedCall, decision: Decision) -> Rehearsed:
    if isinstance(decision, NeedsPolicy | NeedsApproval) and call.ambiguous:
        return Rehearsed(call, Action.DENY, decision.rule, f"its arguments cannot be evaluated: {call.ambiguous}")
    if not isinstance(decision, NeedsPolicy):
        return _settled(call, decision)
    if call.arguments is None:
        return Rehearsed(call, None, decision.rule, f"the policy needs its arguments, {call.unread or NOT_RECORDED}")
    if call.hidden:
        hidden = ", ".join(call.hidden[:5])
        return Rehearsed(call, None, decision.rule, f"the policy needs its arguments, of which are redacted: {hidden}")
    return _settled(call, conclude(book.gates, decision, book.ask_policy(decision, call)))


def _settled(call: RecordedCall, decision: Decision) -> Rehearsed:
    why = f"workflow {decision.workflow}" if isinstance(decision, NeedsApproval) else decision.reason
    return Rehearsed(call, action_of(decision), decision.rule, why)


@dataclass(slots=True)
class Rehearsal:
    """The results of all recorded calls: numbers, and the first changed calls."""

    calls: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of calls, by the decision before and after."""
    tools: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    """Changed and undecided calls by server, name, before, after and reason."""
    examples: list[Rehearsed] = field(default_factory=list)

    def add(self, result: Rehearsed) -> None:
        call = result.call
        self.calls += call.count
        before = call.before.value if call.server else NOT_RECORDED
        self.outcomes[before, result.outcome] += call.count
        if result.changes or result.after is None:
            self.tools[call.server, call.name, before, result.outcome, result.why] += call.count
        if result.changes and len(self.examples) < EXAMPLES:
            self.examples.append(result)

    @property
    def changed(self) -> int:
        return sum(count for (before, after), count in self.outcomes.items() if after not in (before, UNDECIDED))

    @property
    def undecided(self) -> int:
        return sum(count for (_, after), count in self.outcomes.items() if after == UNDECIDED)

    def rows(self) -> dict[str, Any]:
        """Return everything that the page and the command show, for JSON."""
        return {
            "calls": self.calls,
            "changed": self.changed,
            "undecided": self.undecided,
            "cannot_tell": self.undecided,
            "outcomes": [
                {"before": before, "after": after, "calls": count}
                for (before, after), count in sorted(self.outcomes.items())
            ],
            "tools": [
                {"server": server, "tool": name, "before": before, "after": after, "why": why, "calls": count}
                for (server, name, before, after, why), count in self.tools.most_common(EXAMPLES)
            ],
            "examples": [example_row(result) for result in self.examples],
        }


def example_row(result: Rehearsed) -> dict[str, Any]:
    call = result.call
    return {
        "at_ms": call.at_ms,
        "caller": call.principal,
        "scope": call.scope,
        "server": call.server,
        "tool": call.name,
        "arguments": call.arguments,
        "before": call.before.value,
        "rule_before": call.rule,
        "after": result.outcome,
        "rule_after": result.rule,
        "why": result.why,
    }


def rehearse(book: RuleBook, calls: Iterable[RecordedCall], into: Rehearsal | None = None) -> Rehearsal:
    """Evaluate the rules on every call. `into` continues a rehearsal, so that not all calls must be in memory at once."""
    rehearsal = into if into is not None else Rehearsal()
    for call in calls:
        rehearsal.add(evaluate_recorded(book, call))
    return rehearsal
