"""The decision about a name, for listing and for calling alike: visibility, rules, policy, approval.

Each stage may only restrict the result of the stage before. `decide` does not depend on the call, and its result is
cached. Conditions on the entry are evaluated by it, and those on the caller too if the gates are those of a caller
(`Gates.of_caller`); if others are left, it returns a `Residue`, which `settle` evaluates with the facts of the call. If a rule
refers to the policy engine, the result is `NeedsPolicy`; the gateway then evaluates the policy with the actual arguments, and
`conclude` combines both into the final decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from taskgate.core.catalog.pin_keys import RESOURCE_PREFIX, resource_key
from taskgate.core.facts.conditions import Condition
from taskgate.core.facts.table import FACTS, NO_FACTS, Facts
from taskgate.core.facts.truth import Truth, every
from taskgate.core.governance.answers import AnswersByName
from taskgate.core.governance.decision import (
    Branch,
    Decision,
    Denied,
    Determined,
    Forward,
    Gate,
    NeedsApproval,
    NeedsPolicy,
    Note,
    Residue,
    Settled,
    Strictness,
    strictness,
)
from taskgate.core.governance.rules import Matched, RuleSet, compile_rules
from taskgate.core.governance.visibility import EVERYTHING_VISIBLE, Layer
from taskgate.core.governance.workflow import DEFAULT_WORKFLOW, JOINT, Workflow, joined, joint_name
from taskgate.core.patterns import PatternKind, checked_skeleton
from taskgate.core.resource_uri import is_ambiguous, normal_form, on_this_host
from taskgate.core.risk import Risk
from taskgate.core.scoping.registry import ApprovalDemand, ApprovalPolicy
from taskgate.core.settings.governance import Action
from taskgate.core.text.lookalikes import skeletons

UNKNOWN = "unknown_tool"
REFUSED = "policy_denied"
MAX_DISTINCT = 10_000
MAX_CALLERS = 2_000
"""Callers that rules distinguish, of each of which gates are kept."""

RiskOf = Callable[[str], Risk]
"""Returns the risk of a tool of the server by its name."""


def undeclared_risk(name: str) -> Risk:
    """The risk of what no server lists."""
    return Risk.UNDECLARED


class EnforcementProfile(StrEnum):
    """Production enforces; development forwards what rules, policy and approval would stop, and logs it."""

    PRODUCTION = "production"
    DEVELOPMENT = "development"


class PolicyVerdict(StrEnum):
    """The results of a policy engine."""

    FORWARD = "forward"
    APPROVE = "approve"
    REJECT = "reject"


class PolicyAnswer(msgspec.Struct, frozen=True):
    """The result of the engine. `workflows` are those of the policies that require approval; `reason` is for the log."""

    verdict: PolicyVerdict
    reason: str
    workflows: tuple[str, ...] = ()


class UnknownWorkflow(ValueError):
    """A rule, record or policy names an approval workflow that is not configured."""


class Gates(msgspec.Struct, frozen=True, eq=False):
    """Everything a decision needs, compiled for one configuration revision and one scope.

    Only the cache of decisions changes; gates of several scopes share a `RuleSet`.
    """

    revision: str
    rules: RuleSet
    visibility: Layer = EVERYTHING_VISIBLE
    records: Mapping[str, ApprovalPolicy] = msgspec.field(default_factory=dict)
    workflows: Mapping[str, Workflow] = msgspec.field(default_factory=dict)
    profile: EnforcementProfile = EnforcementProfile.PRODUCTION
    tags: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """The tags of servers that have any."""
    caller: Facts = NO_FACTS
    """What is known of the caller; nothing for the gates of all callers."""
    _of_callers: dict[tuple[Any, ...], Gates] = msgspec.field(default_factory=dict)
    _answers: AnswersByName[Decision] = msgspec.field(default_factory=AnswersByName)
    _distinct: dict[tuple[Any, ...], Determined] = msgspec.field(default_factory=dict)
    """Decisions by what they follow from. Each is made and kept once: thousands of tools have the same one."""

    def caller_key(self, caller: Facts) -> tuple[Any, ...]:
        """Return what rules distinguish this caller by. Callers with equal keys get equal decisions."""
        return tuple(FACTS[name].of(caller) for name in self.rules.facts_of_callers)

    def of_caller(self, caller: Facts) -> Gates:
        """Return the gates in which conditions on the caller are evaluated."""
        if not self.rules.facts_of_callers:
            return self
        key = self.caller_key(caller)
        found = self._of_callers.get(key)
        if found is None:
            if len(self._of_callers) >= MAX_CALLERS:
                self._of_callers.clear()
            found = replace(self, caller=caller, _of_callers={}, _answers=AnswersByName(), _distinct={})
            self._of_callers[key] = found
        return found


def decide(
    gates: Gates,
    kind: PatternKind,
    server: str,
    name: str,
    *,
    quarantined: Collection[tuple[str, str]] = (),
    risk_of: RiskOf = undeclared_risk,
) -> Decision:
    """Return whether and how this name may be used. Lists and calls use the same decision.

    `quarantined` has the (server, name) pairs whose definition or content changed and is not accepted yet; a resource
    is in it by its `resource_key`.
    """
    risk = risk_of(name) if gates.rules.depends_on_risk and kind is PatternKind.TOOL else None
    if quarantined and kind is not PatternKind.PROMPT and (server, _quarantine_name(kind, name)) in quarantined:
        return Denied(Gate.VISIBILITY, "its definition changed and is not accepted yet", UNKNOWN)
    key = name if risk is None else f"{risk} {name}"
    found = gates._answers.of(kind, server).get(key)
    if found is None:
        found = _evaluate_gates(gates, kind, server, name, risk)
        gates._answers.keep(kind, server, key, found)
    return found


def decide_listed(
    gates: Gates,
    kind: PatternKind,
    server: str,
    name: str,
    alike: Collection[str],
    *,
    quarantined: Collection[tuple[str, str]] = (),
    risk_of: RiskOf = undeclared_risk,
) -> Decision:
    """Return the decision about a name whose server also lists names that look like it (`alike`): the strictest that any
    of them gets, because a reader or a model takes one for the other.

    A name that is merely not on an allow list counts for nothing: the list allows another one explicitly.
    """
    exact = decide(gates, kind, server, name, quarantined=quarantined, risk_of=risk_of)
    if not alike or isinstance(exact, Denied):
        return exact
    hidden = gates.visibility.hides_lookalike(kind, server, name)
    if hidden is not None:
        return Denied(Gate.VISIBILITY, hidden, UNKNOWN)
    shown = [other for other in alike if gates.visibility.hides(kind, server, other) is None]
    others = (decide(gates, kind, server, other, quarantined=quarantined, risk_of=risk_of) for other in shown)
    return _strictest_of(gates, (exact, *others), _strictest_decision)


_Combine = Callable[[Gates, Sequence[Determined]], Determined]


def _strictest_of(gates: Gates, decisions: Sequence[Decision], combine: _Combine) -> Decision:
    """Return the strictest of some decisions: later, if some depend on the call."""
    determined = [each for each in decisions if not isinstance(each, Residue)]
    layers = [layer for each in decisions if isinstance(each, Residue) for layer in each.layers]
    denied = next((each for each in determined if isinstance(each, Denied)), None)
    if denied is not None or not layers:
        return denied or combine(gates, determined)
    if determined:
        layers.append((Branch((), combine(gates, determined)),))
    return Residue(tuple(dict.fromkeys(layers)))


def _strictest_decision(gates: Gates, decisions: Sequence[Determined]) -> Determined:
    """Combine the decisions about one name and those that look like it. The policy is evaluated for the name that is called."""
    found = max(decisions, key=_severity)
    workflows = [workflow for each in decisions if (workflow := _workflow_of(each)) is not None]
    if isinstance(found, Denied) or not workflows:
        return found
    workflow = _strictest(gates, workflows)
    policy = next((each for each in decisions if isinstance(each, NeedsPolicy)), None)
    if policy is not None:
        return replace(policy, at_least_approve=workflow)
    return next(each for each in decisions if _workflow_of(each) == workflow)


def _workflow_of(decision: Determined) -> str | None:
    """Return the workflow that must approve, whatever a policy decides."""
    match decision:
        case NeedsApproval():
            return decision.workflow
        case NeedsPolicy():
            return decision.at_least_approve
        case _:
            return None


def decide_unlisted(
    gates: Gates,
    kind: PatternKind,
    server: str,
    name: str,
    *,
    quarantined: Collection[tuple[str, str]] = (),
    withheld: Collection[str] = (),
    risk_of: RiskOf = undeclared_risk,
) -> Decision:
    """Return whether a name may be used that its server did not list. Never less strict than for names that it looks
    like.

    A server may accept `DROP_X`, ` drop_x` or `drop＿x` for `drop_x`, and many spellings of one URI; of a file on
    another host it may use only the path. `withheld` has the skeletons (`patterns.checked_skeleton`) of listed names
    that this caller may not use.
    """
    exact = decide(gates, kind, server, name, quarantined=quarantined, risk_of=risk_of)
    if isinstance(exact, Denied):
        return exact
    if kind is PatternKind.RESOURCE and is_ambiguous(name):
        return Denied(Gate.VISIBILITY, "its URI can be read in two ways", UNKNOWN)
    elsewhere = on_this_host(name) if kind is PatternKind.RESOURCE else None
    spellings = (name,) if elsewhere is None else (name, elsewhere)
    held = _quarantined_lookalikes(kind, server, quarantined)
    if any(looks in withheld or looks in held for looks in (checked_skeleton(one, kind) for one in spellings)):
        return Denied(Gate.VISIBILITY, "looks like something that is withheld", UNKNOWN)
    looks_like = (_by_lookalike(gates, kind, server, one, risk_of(name)) for one in spellings)
    return _strictest_of(gates, (exact, *looks_like), _severest)


def _severest(gates: Gates, decisions: Sequence[Determined]) -> Determined:
    return max(decisions, key=_severity)


def _quarantine_name(kind: PatternKind, name: str) -> str:
    return resource_key(name) if kind is PatternKind.RESOURCE else name


def _quarantined_lookalikes(
    kind: PatternKind, server: str, quarantined: Collection[tuple[str, str]]
) -> Collection[str]:
    names = [name for holder, name in quarantined if holder == server]
    if kind is PatternKind.TOOL:
        return skeletons(names)
    if kind is PatternKind.RESOURCE:
        uris = (name.removeprefix(RESOURCE_PREFIX) for name in names if name.startswith(RESOURCE_PREFIX))
        return frozenset(checked_skeleton(uri, kind) for uri in uris)
    return ()


def _by_lookalike(gates: Gates, kind: PatternKind, server: str, name: str, risk: Risk) -> Decision:
    hidden = gates.visibility.hides_lookalike(kind, server, name)
    if hidden is not None:
        return Denied(Gate.VISIBILITY, hidden, UNKNOWN)
    record = gates.records.get(server)
    demand = _demand(record, kind, server, name, lookalike=True)
    matched = gates.rules.match_lookalike(kind, server, name)
    known = _facts(gates, kind, server, checked_skeleton(name, kind), risk if kind is PatternKind.TOOL else None)
    return _by_rules(gates, matched, known, _Restrictions(record, demand, server))


def settle(gates: Gates, decision: Decision, facts: Facts) -> Determined:
    """Return the decision about a call with these facts. Where a condition cannot be evaluated, the strictest decision counts that
    is possible.
    """
    if not isinstance(decision, Residue):
        return decision
    found = [_of_layer(gates, layer, facts) for layer in decision.layers]
    return found[0] if len(found) == 1 else _strictest_decision(gates, found)


def not_evaluated(decision: Decision, facts: Facts) -> list[Condition]:
    """Return the conditions that these facts leave open and that can change the decision."""
    layers = decision.layers if isinstance(decision, Residue) else ()
    possible = (branch for layer in layers for branch in _possible(layer, facts))
    return [each for branch in possible for each in branch.conditions if each.truth(facts) is Truth.UNKNOWN]


def _of_layer(gates: Gates, layer: tuple[Branch, ...], facts: Facts) -> Determined:
    *undecided, last = _possible(layer, facts)
    if not undecided:
        return last.decision
    found = [replace(each.decision, because=f"it cannot be ruled out: {each.decision.because}") for each in undecided]
    return _any_may_count(gates, (*found, last.decision))


def _any_may_count(gates: Gates, decisions: Sequence[Determined]) -> Determined:
    """Return the strictest decision if any of these may count: workflows that may be required must all approve."""
    found = max(decisions, key=_severity)
    policies = [each for each in decisions if isinstance(each, NeedsPolicy)]
    if isinstance(found, Denied):
        return found
    if len({each.policy_id for each in policies}) > 1:
        rule, because = policies[0].rule, policies[0].because
        return _enforce(gates, Denied(Gate.POLICY, "more than one policy may apply", REFUSED, rule, because=because))
    workflows = {name for each in decisions if (name := _workflow_of(each)) is not None}
    if not workflows:
        return found
    if policies:
        return replace(policies[0], at_least_approve=joint_name(workflows))
    held = next(each for each in decisions if isinstance(each, NeedsApproval))
    return replace(held, workflow=joint_name(workflows))


def _possible(layer: tuple[Branch, ...], facts: Facts) -> list[Branch]:
    """Return the branches that may count: those that cannot be evaluated, up to the first whose conditions are met."""
    found, branches = list[Branch](), iter(layer)
    while True:
        branch = next(branches)  # the last one has no conditions
        truth = every(condition.truth(facts) for condition in branch.conditions)
        if truth is not Truth.NO:
            found.append(branch)
        if truth is Truth.YES:
            return found


def conclude(gates: Gates, needs: NeedsPolicy, answer: PolicyAnswer) -> Settled:
    """Return the final decision from the result of the policy engine."""
    match answer.verdict:
        case PolicyVerdict.REJECT:
            return _enforce(gates, Denied(Gate.POLICY, answer.reason, REFUSED, needs.rule, because=needs.because))
        case PolicyVerdict.FORWARD:
            if needs.at_least_approve is not None:
                return _enforce(gates, NeedsApproval(needs.at_least_approve, needs.rule, needs.reason, needs.because))
            return Forward(needs.rule, reason=answer.reason, because=needs.because)
        case PolicyVerdict.APPROVE:
            return _enforce(gates, _approval_by_policy(gates, needs, answer))
        case _:
            assert_never(answer.verdict)


def listed(decision: Decision) -> bool:
    """Whether a name with this decision is listed (annotation mode `strict` also lists what rules deny)."""
    return not isinstance(decision, Denied)


def check_workflows(gates: Gates, from_policies: Mapping[str, str] | None = None) -> None:
    """Raise UnknownWorkflow if the configuration names an unknown workflow; `from_policies` maps a name to the place
    that uses it.
    """
    named = dict(gates.rules.workflows())
    for server, record in gates.records.items():
        if record.workflow is not None:
            named.setdefault(record.workflow, f"servers.{server}.approval_policy")
    for workflow, where in (from_policies or {}).items():
        named.setdefault(workflow, where)
    for workflow, where in named.items():
        if workflow not in gates.workflows and workflow != DEFAULT_WORKFLOW:
            known = ", ".join(sorted(gates.workflows)) or "none is configured"
            raise UnknownWorkflow(f"{where}: there is no approval workflow named {workflow!r} (known: {known})")


def workflow_named(gates: Gates, name: str) -> Workflow:
    """Return the workflow of that name; the built-in one if `approval` does not define `default`."""
    found = gates.workflows.get(name)
    if found is not None:
        return found
    parts = name.split(JOINT)
    return Workflow(name) if len(parts) == 1 else joined(name, [workflow_named(gates, part) for part in parts])


def is_configured(gates: Gates, workflow: str) -> bool:
    """Whether there is this workflow, or each of those that it consists of."""
    return all(part in gates.workflows or part == DEFAULT_WORKFLOW for part in workflow.split(JOINT))


def open_gates(revision: str = "0") -> Gates:
    """Return gates without any rule: everything is forwarded."""
    return Gates(revision, compile_rules(()))


class _Restrictions(NamedTuple):
    """What a server's record requires of a name, in addition to the rules."""

    record: ApprovalPolicy | None
    demand: ApprovalDemand
    server: str


def _evaluate_gates(gates: Gates, kind: PatternKind, server: str, name: str, risk: Risk | None) -> Decision:
    hidden = gates.visibility.hides(kind, server, name)
    if hidden is not None:
        return _kept(gates, ("hidden", hidden), lambda: Denied(Gate.VISIBILITY, hidden, UNKNOWN))
    matched, record = gates.rules.match(kind, server, name), gates.records.get(server)
    demand = _demand(record, kind, server, name, lookalike=False)
    form = normal_form(name) if kind is PatternKind.RESOURCE else name
    return _by_rules(gates, matched, _facts(gates, kind, server, form, risk), _Restrictions(record, demand, server))


def _facts(gates: Gates, kind: PatternKind, server: str, name: str, risk: Risk | None) -> Facts:
    """Return what is known of an entry and, in the gates of a caller, of that caller."""
    if not gates.rules.facts:
        return NO_FACTS
    tags = gates.tags.get(server, frozenset())
    known = replace(gates.caller, kind=kind, server=server, name=name, tags=tags)
    return known if risk is None else replace(known, risk=risk)


def _by_rules(gates: Gates, matched: Sequence[Matched], facts: Facts, restrictions: _Restrictions) -> Decision:
    """Return what the first rule decides whose conditions are met. If conditions on the caller or the call are left, a residue."""
    branches, rules = list[Branch](), iter(matched)
    while True:
        rule = next(rules)  # the last one has no conditions
        known, later = _apart(rule.conditions, facts)
        if every(known) is not Truth.NO:
            branches.append(Branch(later, _restricted(gates, rule, restrictions)))
            if not later:
                return branches[0].decision if len(branches) == 1 else Residue((tuple(branches),))


def _apart(conditions: tuple[Condition, ...], facts: Facts) -> tuple[list[Truth], tuple[Condition, ...]]:
    """Return whether the conditions hold that can be evaluated now, and those that cannot."""
    truths = [condition.truth(facts) for condition in conditions]
    later = tuple(each for each, truth in zip(conditions, truths, strict=True) if truth is Truth.UNKNOWN)
    return [truth for truth in truths if truth is not Truth.UNKNOWN], later


def _restricted(gates: Gates, matched: Matched, restrictions: _Restrictions) -> Determined:
    record, demand, server = restrictions
    # A label names one rule. The server matters only if its record requires more than the rule.
    reasons = (matched.label,) if demand is ApprovalDemand.FORWARD else (matched.label, demand, server)
    return _kept(gates, reasons, lambda: _enforce_any(gates, _tighten(_by_rule(matched), record, demand, server)))


def _kept(gates: Gates, reasons: tuple[str, ...], decision: Callable[[], Determined]) -> Determined:
    found = gates._distinct.get(reasons)
    if found is None:
        if len(gates._distinct) >= MAX_DISTINCT:
            gates._distinct.clear()
        found = gates._distinct[reasons] = decision()
    return found


def _severity(decision: Determined) -> tuple[Strictness, bool]:
    """The strictness of a decision; a note of the development profile is stricter than none."""
    return strictness(decision), isinstance(decision, Forward) and decision.note is not None


def _demand(
    record: ApprovalPolicy | None, kind: PatternKind, server: str, name: str, *, lookalike: bool
) -> ApprovalDemand:
    if record is None:
        return ApprovalDemand.FORWARD
    if kind is not PatternKind.TOOL:
        return record.default
    return record.for_lookalike(server, name) if lookalike else record.for_tool(server, name)


def _by_rule(matched: Matched) -> Determined:
    because = matched.because
    match matched.action:
        case Action.FORWARD:
            return Forward(matched.label, because=because)
        case Action.APPROVE:
            workflow = matched.workflow or DEFAULT_WORKFLOW
            return NeedsApproval(workflow, matched.label, matched.reason, because=because)
        case Action.DENY:
            return Denied(Gate.RULES, matched.reason or "denied by rule", REFUSED, matched.label, because=because)
        case Action.POLICY:
            return NeedsPolicy(
                matched.policy_id, matched.workflow, matched.label, reason=matched.reason, because=because
            )
        case _:
            assert_never(matched.action)


def _tighten(decision: Determined, record: ApprovalPolicy | None, demand: ApprovalDemand, server: str) -> Determined:
    """Apply what a server's own record requires: it can restrict a rule, never relax it."""
    if record is None or isinstance(decision, Denied):
        return decision
    label = f"servers.{server}.approval_policy"
    match demand:
        case ApprovalDemand.FORWARD:
            return decision
        case ApprovalDemand.DENY:
            return Denied(Gate.RULES, "denied by the server's record", REFUSED, label)
        case ApprovalDemand.APPROVE:
            return _at_least_approve(decision, record.workflow, label)
        case _:
            assert_never(demand)


def _at_least_approve(decision: Forward | NeedsPolicy | NeedsApproval, workflow: str | None, label: str) -> Determined:
    """`workflow` is None if the record names none: then any will do."""
    match decision:
        case Forward():
            return NeedsApproval(workflow or DEFAULT_WORKFLOW, label)
        case NeedsPolicy():
            return replace(decision, at_least_approve=workflow or DEFAULT_WORKFLOW)
        case NeedsApproval():
            # The workflows of both layers must approve.
            return (
                decision if workflow is None else replace(decision, workflow=joint_name((decision.workflow, workflow)))
            )
        case _:
            assert_never(decision)


def _enforce_any(gates: Gates, decision: Determined) -> Determined:
    return decision if isinstance(decision, NeedsPolicy) else _enforce(gates, decision)


def _enforce(gates: Gates, decision: Settled) -> Settled:
    if gates.profile is EnforcementProfile.PRODUCTION:
        return decision
    match decision:
        case Forward():
            return decision
        case NeedsApproval():
            return Forward(decision.rule, Note.WOULD_HOLD, f"workflow {decision.workflow}", decision.because)
        case Denied():
            return Forward(decision.rule, Note.WOULD_DENY, decision.reason, decision.because)
        case _:
            assert_never(decision)


def _approval_by_policy(gates: Gates, needs: NeedsPolicy, answer: PolicyAnswer) -> Settled:
    """If several policies name several workflows, the one with the most approvals is used."""
    picked: list[str] = list(answer.workflows) or [needs.workflow or DEFAULT_WORKFLOW]
    unknown = [name for name in picked if name not in gates.workflows and name != DEFAULT_WORKFLOW]
    if unknown:
        return Denied(Gate.POLICY, f"the policy picked an unknown workflow {unknown[0]!r}", REFUSED, needs.rule)
    workflow = _strictest(gates, picked)
    if needs.at_least_approve == DEFAULT_WORKFLOW:
        workflow = _strictest(gates, (*picked, DEFAULT_WORKFLOW))
    elif needs.at_least_approve is not None:
        workflow = joint_name((workflow, needs.at_least_approve))
    return NeedsApproval(workflow, needs.rule, needs.reason, needs.because)


def _strictest(gates: Gates, names: Iterable[str]) -> str:
    # max keeps the first of equals, so the order of the policies decides between equally strict workflows.
    return max(names, key=lambda name: workflow_named(gates, name).approvals_needed)
