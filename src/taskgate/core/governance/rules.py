"""Ordered rules, of which the first match applies, compiled once per configuration revision.

A `RuleSet` returns the rules that may apply to a name, and those for names that look like it: rules with conditions, in
order, up to the first without any. Results are cached by name. What follows from a rule, whether its conditions are met,
and whether a later stage restricts it, is decided in `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from taskgate.core.facts.conditions import Condition, conditions, phrase
from taskgate.core.facts.requirements import of_names
from taskgate.core.facts.table import NAME, Known
from taskgate.core.globs import Glob, PatternError
from taskgate.core.governance.answers import AnswersByName
from taskgate.core.governance.glob_index import NO_MATCH, EveryMatch, RuleIndex
from taskgate.core.patterns import Pattern, PatternKind, PatternSet, checked_skeleton
from taskgate.core.resource_uri import normal_form, normal_glob
from taskgate.core.settings.governance import Action, Rule
from taskgate.core.text.lookalikes import skeleton

DEFAULT_RULE = "defaults"


class BadRule(ValueError):
    """A rule that is invalid or contradicts itself; the message begins with its place in the configuration."""


class Matched(msgspec.Struct, frozen=True):
    """The rule that applies to a name. `label` is for logs, the audit log and the approver."""

    action: Action
    workflow: str | None
    policy_id: str
    label: str
    reason: str = ""
    conditions: tuple[Condition, ...] = ()

    @property
    def because(self) -> str:
        return phrase(self.conditions)


class DescribedRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for display."""

    rule: Annotated[str, Meta(description="label of the rule in decisions")]
    match: Annotated[str, Meta(description="pattern")]
    server: Annotated[str, Meta(description="server that it is limited to; may be empty")]
    origin: Annotated[
        str, Meta(description="`script` if it is limited to calls that scripts make, otherwise empty")
    ] = msgspec.field(name="from")
    when: Annotated[str, Meta(description="its conditions, as a phrase; may be empty")]
    action: Annotated[Action, Meta(description="action of the rule")]
    workflow: Annotated[str, Meta(description="workflow of `approve`; may be empty")]
    policy_id: Annotated[str, Meta(description="policy of `policy`; may be empty")]
    reason: Annotated[str, Meta(description="reason in the configuration; may be empty")]


class _CompiledRule(msgspec.Struct, frozen=True):
    number: int
    """Its place among all rules, which is part of its label."""
    rule: Rule
    pattern: Pattern
    conditions: tuple[Condition, ...] = ()

    @property
    def label(self) -> str:
        return f"rules[{self.number}] {self.rule.match}"

    def matched(self) -> Matched:
        rule = self.rule
        return Matched(
            action=rule.action,
            workflow=rule.approval,
            policy_id=rule.policy_id or "",
            label=self.label,
            reason=rule.reason or "",
            conditions=self.conditions,
        )


class RuleSet:
    """Compiled rules with a cache of results. Create a new one for a new configuration."""

    __slots__ = (
        "_answers",
        "_conditional",
        "_default",
        "_forced",
        "_forced_answers",
        "_index",
        "_lookalikes",
        "_matched",
        "_rules",
        "depends_on_risk",
        "facts",
        "facts_of_callers",
    )

    def __init__(self, rules: Sequence[_CompiledRule], default: Matched, forced: PatternSet) -> None:
        self._rules = tuple(rules)
        self._default = default
        self._forced = forced
        self._index = self._indexed(_name_of)
        self._conditional = self._matching(_name_of)
        self._lookalikes: tuple[RuleIndex, EveryMatch] | None = None
        self._matched: dict[int, Matched] = {}
        """Of the rules that matched a name. Few of thousands do."""
        self._answers = AnswersByName[tuple[Matched, ...]]()
        self._forced_answers = AnswersByName[bool]()
        used = {each.fact for rule in rules for each in rule.conditions}
        self.facts = frozenset(fact.name for fact in used)
        """The names of the facts that conditions depend on."""
        self.facts_of_callers = tuple(sorted(fact.name for fact in used if fact.known is Known.WITH_CALLER))
        self.depends_on_risk = "risk" in self.facts

    def _indexed(self, glob_of: Callable[[Pattern], Glob]) -> RuleIndex:
        return RuleIndex(
            [(n, rule.pattern, rule.rule.server) for n, rule in enumerate(self._rules) if not rule.conditions], glob_of
        )

    def _matching(self, glob_of: Callable[[Pattern], Glob]) -> EveryMatch:
        return EveryMatch(
            [(n, rule.pattern, rule.rule.server) for n, rule in enumerate(self._rules) if rule.conditions], glob_of
        )

    def match(self, kind: PatternKind, server: str, name: str) -> tuple[Matched, ...]:
        """Return the rules with conditions that match the name, in order, up to the first rule without any or the defaults."""
        if not self._rules:
            return (self._default,)
        found = self._answers.of(kind, server).get(name)
        if found is None:
            found = self._first(kind, server, name)
            self._answers.keep(kind, server, name, found)
        return found

    def forced(self, server: str, name: str) -> bool:
        """Whether `force_required` requires that this tool is called as a task."""
        if not self._forced.patterns:
            return False
        found = self._forced_answers.of(PatternKind.TOOL, server).get(name)
        if found is None:
            found = self._forced.for_server(server)(name)
            self._forced_answers.keep(PatternKind.TOOL, server, name, found)
        return found

    def workflows(self) -> dict[str, str]:
        """Return every workflow that a rule names, with the label of the first rule that does."""
        named: dict[str, str] = {}
        for rule in self._rules:
            if rule.rule.approval is not None:
                named.setdefault(rule.rule.approval, rule.label)
        if self._default.workflow is not None:
            named.setdefault(self._default.workflow, self._default.label)
        return named

    def described(self) -> list[DescribedRule]:
        """Return every rule in order, and the default, for display."""
        rows = [
            (each.pattern.text, each.rule.server or "", each.rule.from_ or "", each.matched()) for each in self._rules
        ]
        return [
            DescribedRule(
                rule=matched.label,
                match=match,
                server=server,
                origin=scripts,
                when=matched.because,
                action=matched.action,
                workflow=matched.workflow or "",
                policy_id=matched.policy_id,
                reason=matched.reason,
            )
            for match, server, scripts, matched in [*rows, ("everything else", "", "", self._default)]
        ]

    def match_lookalike(self, kind: PatternKind, server: str, name: str) -> tuple[Matched, ...]:
        """Like `match`, for a name that looks like this one. Conditions on the name are about its skeleton. Not cached."""
        if self._lookalikes is None:
            names = [rule.pattern.name for rule in self._rules]
            if all(name.lookalike is name for name in names):
                self._lookalikes = self._index, self._conditional
            else:
                self._lookalikes = self._indexed(_lookalike_of), self._matching(_lookalike_of)
        found = self._found(*self._lookalikes, kind, server, checked_skeleton(name, kind))
        return tuple(
            replace(each, conditions=_on_names(each.conditions, skeleton, _LOOKALIKE)) if each.conditions else each
            for each in found
        )

    def _first(self, kind: PatternKind, server: str, name: str) -> tuple[Matched, ...]:
        form = normal_form(name) if kind is PatternKind.RESOURCE else name
        return self._found(self._index, self._conditional, kind, server, form)

    def _found(
        self, index: RuleIndex, conditional: EveryMatch, kind: PatternKind, server: str, form: str
    ) -> tuple[Matched, ...]:
        last = index.first(kind, server, form)
        return *map(self._numbered, conditional.before(last, kind, server, form)), self._numbered(last)

    def _numbered(self, number: int) -> Matched:
        if number == NO_MATCH:
            return self._default
        found = self._matched.get(number)
        if found is None:
            found = self._matched[number] = self._rules[number].matched()
        return found


_name_of: Final[Callable[[Pattern], Glob]] = attrgetter("name")
_lookalike_of: Final[Callable[[Pattern], Glob]] = attrgetter("name.lookalike")
_LOOKALIKE: Final[Callable[[Glob], Glob]] = attrgetter("lookalike")


def _on_names(
    given: tuple[Condition, ...], text: Callable[[str], str], glob: Callable[[Glob], Glob]
) -> tuple[Condition, ...]:
    """Return the conditions, those on the name for names in another form."""
    return tuple(
        replace(each, requirement=of_names(each.requirement, text, glob)) if each.fact.name == NAME else each
        for each in given
    )


def compile_rules(
    rules: Iterable[Rule],
    *,
    default: Action = Action.FORWARD,
    default_workflow: str | None = None,
    default_policy_id: str | None = None,
    force_required: Iterable[str] = (),
) -> RuleSet:
    """Compile rules in order. Raises BadRule for an invalid glob or condition, or a rule that contradicts itself."""
    compiled = [_compile(number, rule) for number, rule in enumerate(rules)]
    try:
        Rule("*", default, approval=default_workflow, policy_id=default_policy_id)
    except ValueError as error:
        raise BadRule(f"governance.defaults: {error}") from None
    return RuleSet(
        compiled,
        Matched(default, default_workflow, default_policy_id or "", DEFAULT_RULE),
        _forced(force_required),
    )


class OrderedRule(NamedTuple):
    """A rule as far as its place among others matters. `conditions` is a text that equal conditions have in common."""

    number: int
    pattern: Pattern
    server: str | None = None
    conditions: str = ""


def unreachable(rules: Sequence[OrderedRule]) -> dict[int, int]:
    """Return the numbers of rules that never apply, with the earlier one that covers each. A rule with conditions covers
    only rules with the same conditions.
    """
    found: dict[int, int] = {}
    needles: list[str] = []
    for rule in rules:
        text = rule.pattern.name.text
        # What covers a pattern has its longest literal part in common with it: most pairs end there.
        earlier = [rules[place] for place, needle in enumerate(needles) if needle in text]
        needles.append(rule.pattern.name.needle)
        covering = (each.number for each in earlier if each.number not in found and _covers(each, rule))
        first = next(covering, None)
        if first is not None:
            found[rule.number] = first
    return found


def _covers(wide: OrderedRule, narrow: OrderedRule) -> bool:
    pattern, server = narrow.pattern, narrow.server
    if wide.conditions not in ("", narrow.conditions):
        return False
    if wide.pattern.kind is not pattern.kind or not wide.pattern.name.covers(pattern.name):
        return False
    # If a rule names one server, only that server counts.
    only = Glob.compile(server) if server is not None and pattern.server.matches(server) else pattern.server
    return wide.pattern.server.covers(only) and (wide.server is None or (only.literal and only.text == wide.server))


def _compile(number: int, rule: Rule) -> _CompiledRule:
    try:
        pattern = Pattern.compile(rule.match)
    except PatternError as error:
        raise BadRule(f"governance.rules[{number}]: {error.message}") from error
    try:
        return _CompiledRule(number, rule, pattern, conditions_of(rule, pattern))
    except ValueError as error:
        raise BadRule(f"governance.rules[{number}]: {error}") from None


def conditions_of(rule: Rule, pattern: Pattern) -> tuple[Condition, ...]:
    """Return the conditions of a rule. Raises ValueError."""
    if rule.from_ is not None and pattern.kind is not PatternKind.TOOL:
        raise ValueError(f"`from: script` only makes sense for tools, not for `{rule.match}`")
    when: Mapping[str, Any] = rule.when if rule.from_ is None else {"from_script": "true", **rule.when}
    found = conditions(when)
    for each in found:
        if each.fact.for_tools_only and pattern.kind is not PatternKind.TOOL:
            raise ValueError(f"when.{each.fact.name}: only makes sense for tools, not for `{rule.match}`")
    if pattern.kind is PatternKind.RESOURCE:
        # URIs are compared in their normal form, as by the pattern.
        return _on_names(found, normal_form, lambda glob: Glob.unchecked(normal_glob(glob.text)))
    return found


def _forced(patterns: Iterable[str]) -> PatternSet:
    try:
        return PatternSet.of(patterns)
    except PatternError as error:
        raise BadRule(f"governance.force_required: {error.message}") from error
