"""Evaluate a changed set of rules on recorded calls.

Recorded calls are decided by the same functions as live calls (`compose`, `decide`, `conclude`). If the decision depends on
something that was not recorded, or was redacted, the call is undecided: nothing is guessed. Standing grants are not part of
a set of rules: a call that a grant covered counts as held before, and as held after if it needs approval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taskgate.core.facts.conditions import Condition
from taskgate.core.facts.table import Facts
from taskgate.core.facts.truth import NOT_KNOWN
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.decision import Decision, Denied, Gate, NeedsApproval, NeedsPolicy, Residue, action_of
from taskgate.core.governance.pipeline import (
    UNKNOWN,
    Gates,
    PolicyAnswer,
    conclude,
    decide,
    decide_unlisted,
    not_evaluated,
    settle,
)
from taskgate.core.patterns import PatternKind
from taskgate.core.risk import Risk
from taskgate.core.scoping.registry import Registry
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import NO_REQUEST, SessionRequest
from taskgate.core.scoping.subset import Subset, compose
from taskgate.core.settings.governance import Action
from taskgate.core.strict_json import parse_strict

UNDECIDED: Final = "cannot tell"
"""The value of `after` in JSON for a call that is undecided. It is part of the API, so it keeps this name."""
NOT_RECORDED: Final = "not recorded"
EXAMPLES: Final = 200
"""Changed calls that a rehearsal lists individually; the others are counted."""


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call as the gates decided it. `before` is the decision at that time; `count` is above 1 only if nothing but the number
    of calls was recorded.
    """

    at_ms: Annotated[int, Meta(description="time, in milliseconds since 1970")]
    principal: Annotated[str, Meta(description="principal of the caller")] = ""
    roles: Annotated[tuple[str, ...], Meta(description="roles of the caller")] = ()
    scope: Annotated[str, Meta(description="scope")] = ""
    server: Annotated[str, Meta(description="name of the server")] = ""
    name: Annotated[str, Meta(description="name of the tool, resource or prompt")] = ""
    kind: Annotated[PatternKind, Meta(description="`tool` (default), `resource` or `prompt`")] = PatternKind.TOOL
    before: Annotated[Action, Meta(description="decision at that time; default `forward`")] = Action.FORWARD
    rule: Annotated[str, Meta(description="rule that decided")] = ""
    arguments: Annotated[str | None, Meta(description="arguments as JSON text, redacted")] = None
    """None if they were not recorded."""
    hidden: Annotated[tuple[str, ...], Meta(description="paths of redacted fields")] = ()
    unread: Annotated[str, Meta(description="why there are no arguments")] = ""
    ambiguous: Annotated[str, Meta(description="why the arguments cannot be evaluated")] = ""
    """Such a call is refused if its decision depends on the arguments."""
    listed: Annotated[bool, Meta(description="false if its server had not listed it")] = True
    server_requested: Annotated[bool, Meta(description="true if its session had requested this server")] = (
        msgspec.field(default=False, name="asked_servers")
    )
    """The server need not be a default server of the scope."""
    temporary: Annotated[bool, Meta(description="true if its scope was temporary")] = False
    """It was created at run time and is not in the configuration."""
    count: Annotated[int, Meta(description="number of calls, if only their number was recorded")] = 1
    from_script: Annotated[bool, Meta(description="true if a script made it")] = False
    client: Annotated[str | None, Meta(description="name of the client program")] = None
    generation: Annotated[Generation | None, Meta(description="`stateful` or `stateless`")] = None
    risk: Annotated[Risk | None, Meta(description="risk of the tool at that time")] = None


AskPolicy = Callable[[NeedsPolicy, RecordedCall], PolicyAnswer]


class RuleBook(msgspec.Struct, frozen=True, eq=False):
    """The gates, servers and scopes of a configuration, and the policy engine that its rules may use."""

    gates: Gates
    registry: Registry
    scopes: Mapping[str, ScopePolicy]
    ask_policy: AskPolicy
    token_ids: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The ids of configured tokens by principal."""
    _subsets: dict[tuple[str, str], Subset] = msgspec.field(default_factory=dict)

    def admits(self, call: RecordedCall) -> bool:
        """Whether the scope of the call includes what it names."""
        requested = call.server if call.server_requested else ""
        subset = self._subsets.get((call.scope, requested))
        if subset is None:
            policy = self.scopes.get(call.scope) or ScopePolicy(call.scope, enabled=False)
            narrowing = SessionRequest(((requested,),)) if requested else NO_REQUEST
            subset = self._subsets[call.scope, requested] = compose(self.registry, policy, narrowing, strict=False)
        return subset.admits_kind(call.server, call.name, call.kind)


class Rehearsed(msgspec.Struct, frozen=True):
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
    if book.gates.rules.depends_on_risk and call.kind is PatternKind.TOOL and call.risk is None:
        return Rehearsed(call, None, "", "the rules depend on the risk of the tool, which was not recorded")
    decision = _by_name(book.gates, call)
    if decision is None:
        return Rehearsed(call, None, "", "its server had not listed it, so it cannot be compared with similar names")
    return _with_arguments(book, call, decision)


def _by_name(gates: Gates, call: RecordedCall) -> Decision | None:
    if call.listed:
        return decide(gates, call.kind, call.server, call.name, risk_of=lambda _: call.risk or Risk.UNDECLARED)
    # What the server listed at that time is not recorded. A refusal does not depend on it; any other decision might
    # have been a refusal.
    decision = decide_unlisted(gates, call.kind, call.server, call.name)
    return decision if isinstance(decision, Denied) else None


def _with_arguments(book: RuleBook, call: RecordedCall, decision: Decision) -> Rehearsed:
    if isinstance(decision, Residue):
        facts = _facts(book, call)
        left = not_evaluated(decision, facts)
        if left and call.ambiguous:
            return Rehearsed(call, Action.DENY, decision.rule, f"its arguments cannot be evaluated: {call.ambiguous}")
        unknown = next((each for each in left if each.fact.of(facts) is NOT_KNOWN), None)
        if unknown is not None:
            why = f"the condition {unknown} cannot be evaluated, because {call.unread or _why_unknown(call, unknown)}"
            return Rehearsed(call, None, decision.rule, why)
        decision = settle(book.gates, decision, facts)
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


def _why_unknown(call: RecordedCall, left: Condition) -> str:
    return f"{', '.join(call.hidden[:5])} was redacted" if call.hidden and left.path else f"it was {NOT_RECORDED}"


def _facts(book: RuleBook, call: RecordedCall) -> Facts:
    arguments = NOT_KNOWN if call.arguments is None or call.hidden else parse_strict(call.arguments)
    return Facts(
        kind=call.kind,
        server=call.server,
        name=call.name,
        scope=call.scope,
        principal=call.principal,
        token_id=book.token_ids.get(call.principal, ""),
        roles=frozenset(call.roles),
        from_script=call.from_script,
        client=NOT_KNOWN if call.client is None else call.client,
        generation=NOT_KNOWN if call.generation is None else call.generation,
        at_s=call.at_ms // 1000,
        arguments=arguments if isinstance(arguments, Mapping) else NOT_KNOWN,
    )


def _settled(call: RecordedCall, decision: Decision) -> Rehearsed:
    why = f"workflow {decision.workflow}" if isinstance(decision, NeedsApproval) else decision.reason
    return Rehearsed(call, action_of(decision), decision.rule, why)


class Rehearsal(msgspec.Struct):
    """The results of all recorded calls: numbers, and the first changed calls."""

    calls: int = 0
    outcomes: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Number of calls, by the decision before and after."""
    tools: Counter[tuple[str, str, str, str, str]] = msgspec.field(default_factory=Counter)
    """Changed and undecided calls by server, name, before, after and reason."""
    examples: list[Rehearsed] = msgspec.field(default_factory=list)

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


def rehearse(book: RuleBook, calls: Iterable[RecordedCall], into: Rehearsal | None = None) -> Rehearsal:
    """Evaluate the rules on every call. `into` continues a rehearsal, so that not all calls must be in memory at once."""
    rehearsal = into if into is not None else Rehearsal()
    for call in calls:
        rehearsal.add(evaluate_recorded(book, call))
    return rehearsal
