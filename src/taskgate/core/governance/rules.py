"""Ordered rules, of which the first match applies, compiled once per configuration revision.

A `RuleSet` returns the rule that applies to a name, and the rule for names that look like it. Results are cached by
name. What follows from a rule, and whether a later stage restricts it, is decided in `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taskgate.core.globs import Glob, PatternError
from taskgate.core.governance.answers import AnswersByName
from taskgate.core.governance.glob_index import NO_MATCH, RuleIndex
from taskgate.core.patterns import Pattern, PatternKind, PatternSet, checked_skeleton
from taskgate.core.resource_uri import normal_form
from taskgate.core.settings.governance import Action, Rule

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


class DescribedRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for display."""

    rule: Annotated[str, Meta(description="label of the rule in decisions")]
    match: Annotated[str, Meta(description="pattern")]
    server: Annotated[str, Meta(description="server that it is limited to; may be empty")]
    origin: Annotated[
        str, Meta(description="`script` if it is limited to calls that scripts make, otherwise empty")
    ] = msgspec.field(name="from")
    action: Annotated[Action, Meta(description="action of the rule")]
    workflow: Annotated[str, Meta(description="workflow of `approve`; may be empty")]
    policy_id: Annotated[str, Meta(description="policy of `policy`; may be empty")]
    reason: Annotated[str, Meta(description="reason in the configuration; may be empty")]


class _CompiledRule(msgspec.Struct, frozen=True):
    number: int
    """Its place among all rules, which is part of its label."""
    rule: Rule
    pattern: Pattern

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
        )


class RuleSet:
    """Compiled rules with a cache of results. Create a new one for a new configuration."""

    __slots__ = ("_answers", "_default", "_forced", "_forced_answers", "_index", "_lookalikes", "_matched", "_rules")

    def __init__(self, rules: Sequence[_CompiledRule], default: Matched, forced: PatternSet) -> None:
        self._rules = tuple(rules)
        self._default = default
        self._forced = forced
        self._index = RuleIndex([(rule.pattern, rule.rule.server) for rule in rules], _name_of)
        self._lookalikes: RuleIndex | None = None
        self._matched: dict[int, Matched] = {}
        """Of the rules that matched a name. Few of thousands do."""
        self._answers = AnswersByName[Matched]()
        self._forced_answers = AnswersByName[bool]()

    def match(self, kind: PatternKind, server: str, name: str) -> Matched:
        """Return the first rule that matches the name, else the defaults."""
        if not self._rules:
            return self._default
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
                action=matched.action,
                workflow=matched.workflow or "",
                policy_id=matched.policy_id,
                reason=matched.reason,
            )
            for match, server, scripts, matched in [*rows, ("everything else", "", "", self._default)]
        ]

    def match_lookalike(self, kind: PatternKind, server: str, name: str) -> Matched:
        """Return the first rule that matches a name which looks like this one, else the defaults. Not cached."""
        if self._lookalikes is None:
            names = [rule.pattern.name for rule in self._rules]
            if all(name.lookalike is name for name in names):
                self._lookalikes = self._index
            else:
                rules = [(rule.pattern, rule.rule.server) for rule in self._rules]
                self._lookalikes = RuleIndex(rules, lambda pattern: pattern.name.lookalike)
        return self._numbered(self._lookalikes.first(kind, server, checked_skeleton(name, kind)))

    def _first(self, kind: PatternKind, server: str, name: str) -> Matched:
        form = normal_form(name) if kind is PatternKind.RESOURCE else name
        return self._numbered(self._index.first(kind, server, form))

    def _numbered(self, number: int) -> Matched:
        if number == NO_MATCH:
            return self._default
        found = self._matched.get(number)
        if found is None:
            found = self._matched[number] = self._rules[number].matched()
        return found


_name_of: Final[Callable[[Pattern], Glob]] = attrgetter("name")


def compile_rules(
    rules: Iterable[Rule],
    *,
    default: Action = Action.FORWARD,
    default_workflow: str | None = None,
    default_policy_id: str | None = None,
    force_required: Iterable[str] = (),
    from_script: bool = False,
) -> RuleSet:
    """Compile rules in order, for the calls of scripts or for all others. Raises BadRule for an invalid glob or a rule that
    contradicts itself.
    """
    every = [_compile(number, rule) for number, rule in enumerate(rules)]
    compiled = [each for each in every if from_script or each.rule.from_ is None]
    try:
        Rule("*", default, approval=default_workflow, policy_id=default_policy_id)
    except ValueError as error:
        raise BadRule(f"governance.defaults: {error}") from None
    return RuleSet(
        compiled,
        Matched(default, default_workflow, default_policy_id or "", DEFAULT_RULE),
        _forced(force_required),
    )


def unreachable(rules: Sequence[tuple[int, Pattern, str | None]]) -> dict[int, int]:
    """Return the numbers of patterns, each for one server or for all, that never apply, with the earlier one that
    covers each.
    """
    found: dict[int, int] = {}
    needles: list[str] = []
    for number, pattern, server in rules:
        text = pattern.name.text
        # What covers a pattern has its longest literal part in common with it: most pairs end there.
        earlier = [rules[place] for place, needle in enumerate(needles) if needle in text]
        needles.append(pattern.name.needle)
        covering = (n for n, wide, limit in earlier if n not in found and _covers(wide, limit, pattern, server))
        first = next(covering, None)
        if first is not None:
            found[number] = first
    return found


def _covers(wide: Pattern, limit: str | None, narrow: Pattern, server: str | None) -> bool:
    if wide.kind is not narrow.kind or not wide.name.covers(narrow.name):
        return False
    # If a rule names one server, only that server counts.
    only = Glob.compile(server) if server is not None and narrow.server.matches(server) else narrow.server
    return wide.server.covers(only) and (limit is None or (only.literal and only.text == limit))


def _compile(number: int, rule: Rule) -> _CompiledRule:
    try:
        pattern = Pattern.compile(rule.match)
    except PatternError as error:
        raise BadRule(f"governance.rules[{number}]: {error.message}") from error
    if rule.from_ is not None and pattern.kind is not PatternKind.TOOL:
        raise BadRule(f"governance.rules[{number}]: `from: script` only makes sense for tools, not for `{rule.match}`")
    return _CompiledRule(number, rule, pattern)


def _forced(patterns: Iterable[str]) -> PatternSet:
    try:
        return PatternSet.of(patterns)
    except PatternError as error:
        raise BadRule(f"governance.force_required: {error.message}") from error
