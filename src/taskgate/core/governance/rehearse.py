"""What a changed set of rules would have said about calls that were recorded.

It decides with the functions that a call goes through (`compose`, `decide`, `conclude`), on what was recorded. Where
the answer hangs on something that was not recorded, or was redacted, the answer is "cannot tell": nothing is guessed.
Standing grants are no part of a set of rules: a call that one of them let through counts as held before, and as held
after if a person must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from taskgate.core.governance.decision import Action, Decision, Denied, Gate, NeedsApproval, NeedsPolicy, action_of
from taskgate.core.governance.pipeline import UNKNOWN, Gates, PolicyAnswer, conclude, decide, decide_unlisted
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.registry import Registry
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import NO_WISH, SessionRequest
from taskgate.core.scoping.subset import Subset, compose

CANNOT_TELL: Final = "cannot tell"
NOT_RECORDED: Final = "not recorded"
EXAMPLES: Final = 200
"""Changed calls that a rehearsal shows one by one; the others are counted."""


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call as the gates saw it. `before` is what the rules said then; `count` is above 1 only where nothing but the number of
    calls was kept."""

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
    """JSON text, redacted; None if it was not kept."""
    hidden: tuple[str, ...] = ()
    """What was redacted in the arguments."""
    unread: str = ""
    """Why there are no arguments."""
    ambiguous: str = ""
    """Why the arguments cannot be judged: such a call is refused wherever its arguments matter."""
    listed: bool = True
    """Whether its server had listed it."""
    asked_servers: bool = False
    """Whether its session had asked for this server, which need not be one of the scope's own."""
    temporary: bool = False
    """Whether its scope was handed over at run time, and so is in no configuration."""
    count: int = 1


AskPolicy = Callable[[NeedsPolicy, RecordedCall], PolicyAnswer]


@dataclass(frozen=True, slots=True)
class RuleBook:
    """What decides: a configuration's gates, servers and scopes, and the policy engine that its rules may ask."""

    gates: Gates
    registry: Registry
    scopes: Mapping[str, ScopePolicy]
    ask_policy: AskPolicy
    _subsets: dict[tuple[str, str], Subset] = field(default_factory=dict, repr=False)

    def admits(self, call: RecordedCall) -> bool:
        """Whether the scope of the call has what it names."""
        asked = call.server if call.asked_servers else ""
        subset = self._subsets.get((call.scope, asked))
        if subset is None:
            policy = self.scopes.get(call.scope) or ScopePolicy(call.scope, enabled=False)
            wish = SessionRequest(((asked,),)) if asked else NO_WISH
            subset = self._subsets[call.scope, asked] = compose(self.registry, policy, wish, asking=False)
        return subset.admits_kind(call.server, call.name, call.kind)


@dataclass(frozen=True, slots=True)
class Judged:
    """What would have become of one call; `after` is None if that cannot be told."""

    call: RecordedCall
    after: Action | None
    rule: str
    why: str

    @property
    def changes(self) -> bool:
        return self.after is not None and self.after is not self.call.before

    @property
    def outcome(self) -> str:
        return CANNOT_TELL if self.after is None else self.after.value


def judge(book: RuleBook, call: RecordedCall) -> Judged:
    """What these rules say about one recorded call."""
    if not call.server:
        return Judged(call, None, "", NOT_RECORDED)
    if call.temporary:
        return Judged(call, None, "", "its scope was handed over at run time and is in no configuration")
    if not book.admits(call):
        return _settled(call, Denied(Gate.VISIBILITY, f"not in the scope {call.scope}", UNKNOWN))
    decision = _by_name(book.gates, call)
    if decision is None:
        return Judged(call, None, "", "its server had not listed it, so what it looks like cannot be compared")
    return _with_arguments(book, call, decision)


def _by_name(gates: Gates, call: RecordedCall) -> Decision | None:
    if call.listed:
        return decide(gates, call.kind, call.server, call.name)
    # What the server listed then is not recorded. A refusal needs none of it; anything else might have become one.
    decision = decide_unlisted(gates, call.kind, call.server, call.name)
    return decision if isinstance(decision, Denied) else None


def _with_arguments(book: RuleBook, call: RecordedCall, decision: Decision) -> Judged:
    if isinstance(decision, NeedsPolicy | NeedsApproval) and call.ambiguous:
        return Judged(call, Action.DENY, decision.rule, f"its arguments cannot be judged: {call.ambiguous}")
    if not isinstance(decision, NeedsPolicy):
        return _settled(call, decision)
    if call.arguments is None:
        return Judged(call, None, decision.rule, f"the policy needs its arguments, {call.unread or NOT_RECORDED}")
    if call.hidden:
        hidden = ", ".join(call.hidden[:5])
        return Judged(call, None, decision.rule, f"the policy needs its arguments, of which are redacted: {hidden}")
    return _settled(call, conclude(book.gates, decision, book.ask_policy(decision, call)))


def _settled(call: RecordedCall, decision: Decision) -> Judged:
    why = f"workflow {decision.workflow}" if isinstance(decision, NeedsApproval) else decision.reason
    return Judged(call, action_of(decision), decision.rule, why)


@dataclass(slots=True)
class Rehearsal:
    """What became of all recorded calls: how many of each kind, and the first of those that change."""

    calls: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many calls, by what was said before and what would be said."""
    tools: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    """Changed and untold calls by server, name, before, after and why."""
    examples: list[Judged] = field(default_factory=list)

    def add(self, judged: Judged) -> None:
        call = judged.call
        self.calls += call.count
        before = call.before.value if call.server else NOT_RECORDED
        self.outcomes[before, judged.outcome] += call.count
        if judged.changes or judged.after is None:
            self.tools[call.server, call.name, before, judged.outcome, judged.why] += call.count
        if judged.changes and len(self.examples) < EXAMPLES:
            self.examples.append(judged)

    @property
    def changed(self) -> int:
        return sum(count for (before, after), count in self.outcomes.items() if after not in (before, CANNOT_TELL))

    @property
    def untold(self) -> int:
        return sum(count for (_, after), count in self.outcomes.items() if after == CANNOT_TELL)

    def rows(self) -> dict[str, Any]:
        """For JSON: everything that the page and the command show."""
        return {
            "calls": self.calls,
            "changed": self.changed,
            "cannot_tell": self.untold,
            "outcomes": [
                {"before": before, "after": after, "calls": count}
                for (before, after), count in sorted(self.outcomes.items())
            ],
            "tools": [
                {"server": server, "tool": name, "before": before, "after": after, "why": why, "calls": count}
                for (server, name, before, after, why), count in self.tools.most_common(EXAMPLES)
            ],
            "examples": [example_row(judged) for judged in self.examples],
        }


def example_row(judged: Judged) -> dict[str, Any]:
    call = judged.call
    return {
        "at_ms": call.at_ms,
        "caller": call.principal,
        "scope": call.scope,
        "server": call.server,
        "tool": call.name,
        "arguments": call.arguments,
        "before": call.before.value,
        "rule_before": call.rule,
        "after": judged.outcome,
        "rule_after": judged.rule,
        "why": judged.why,
    }


def rehearse(book: RuleBook, calls: Iterable[RecordedCall], into: Rehearsal | None = None) -> Rehearsal:
    """Judge every call. `into` goes on with a rehearsal that has seen other calls, so that they need not be held all at once."""
    rehearsal = into if into is not None else Rehearsal()
    for call in calls:
        rehearsal.add(judge(book, call))
    return rehearsal
