"""The decision about a name, for listing and for calling alike: visibility, rules, policy, approval.

Each stage may only restrict the result of the stage before. `decide` does not depend on arguments, and its result is
cached. If a rule refers to the policy engine, `decide` returns `NeedsPolicy`; the gateway then evaluates the policy
with the actual arguments, and `conclude` combines both into the final decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import assert_never

import msgspec
from msgspec.structs import replace

from taskgate.core.catalog.pin_keys import RESOURCE_PREFIX, resource_key
from taskgate.core.governance.answers import AnswersByName
from taskgate.core.governance.decision import (
    Decision,
    Denied,
    Forward,
    Gate,
    NeedsApproval,
    NeedsPolicy,
    Note,
    Settled,
    Strictness,
    strictness,
)
from taskgate.core.governance.rules import Matched, RuleSet, compile_rules
from taskgate.core.governance.visibility import EVERYTHING_VISIBLE, Layer
from taskgate.core.governance.workflow import DEFAULT_WORKFLOW, Workflow
from taskgate.core.patterns import PatternKind, checked_skeleton
from taskgate.core.resource_uri import is_ambiguous, on_this_host
from taskgate.core.scoping.registry import ApprovalDemand, ApprovalPolicy
from taskgate.core.settings.governance import Action
from taskgate.core.text.lookalikes import skeletons

UNKNOWN = "unknown_tool"
REFUSED = "policy_denied"
MAX_DISTINCT = 10_000


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
    script_gates: Gates | None = None
    """Gates for the calls that scripts make; None if no rule distinguishes them."""
    _answers: AnswersByName[Decision] = msgspec.field(default_factory=AnswersByName)
    _distinct: dict[tuple[str, ...], Decision] = msgspec.field(default_factory=dict)
    """Decisions by what they follow from. Each is made and kept once: thousands of tools have the same one."""

    def for_calls(self, *, from_script: bool) -> Gates:
        """Return the gates for calls that scripts make, or for all other calls."""
        return self.script_gates if from_script and self.script_gates is not None else self


def decide(
    gates: Gates, kind: PatternKind, server: str, name: str, *, quarantined: Collection[tuple[str, str]] = ()
) -> Decision:
    """Return whether and how this name may be used. Lists and calls use the same decision.

    `quarantined` has the (server, name) pairs whose definition or content changed and is not accepted yet; a resource
    is in it by its `resource_key`.
    """
    if quarantined and kind is not PatternKind.PROMPT and (server, _quarantine_name(kind, name)) in quarantined:
        return Denied(Gate.VISIBILITY, "its definition changed and is not accepted yet", UNKNOWN)
    found = gates._answers.of(kind, server).get(name)
    if found is None:
        found = _evaluate_gates(gates, kind, server, name)
        gates._answers.keep(kind, server, name, found)
    return found


def decide_listed(
    gates: Gates,
    kind: PatternKind,
    server: str,
    name: str,
    alike: Collection[str],
    *,
    quarantined: Collection[tuple[str, str]] = (),
) -> Decision:
    """Return the decision about a name whose server also lists names that look like it (`alike`): the strictest that any
    of them gets, because a reader or a model takes one for the other.

    A name that is merely not on an allow list counts for nothing: the list allows another one explicitly.
    """
    exact = decide(gates, kind, server, name, quarantined=quarantined)
    if not alike or isinstance(exact, Denied):
        return exact
    hidden = gates.visibility.hides_lookalike(kind, server, name)
    if hidden is not None:
        return Denied(Gate.VISIBILITY, hidden, UNKNOWN)
    shown = [other for other in alike if gates.visibility.hides(kind, server, other) is None]
    others = (decide(gates, kind, server, other, quarantined=quarantined) for other in shown)
    return _strictest_decision(gates, (exact, *others))


def _strictest_decision(gates: Gates, decisions: Sequence[Decision]) -> Decision:
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


def _workflow_of(decision: Decision) -> str | None:
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
) -> Decision:
    """Return whether a name may be used that its server did not list. Never less strict than for names that it looks
    like.

    A server may accept `DROP_X`, ` drop_x` or `drop＿x` for `drop_x`, and many spellings of one URI; of a file on
    another host it may use only the path. `withheld` has the skeletons (`patterns.checked_skeleton`) of listed names
    that this caller may not use.
    """
    exact = decide(gates, kind, server, name, quarantined=quarantined)
    if isinstance(exact, Denied):
        return exact
    if kind is PatternKind.RESOURCE and is_ambiguous(name):
        return Denied(Gate.VISIBILITY, "its URI can be read in two ways", UNKNOWN)
    elsewhere = on_this_host(name) if kind is PatternKind.RESOURCE else None
    spellings = (name,) if elsewhere is None else (name, elsewhere)
    held = _quarantined_lookalikes(kind, server, quarantined)
    if any(looks in withheld or looks in held for looks in (checked_skeleton(one, kind) for one in spellings)):
        return Denied(Gate.VISIBILITY, "looks like something that is withheld", UNKNOWN)
    return max(exact, *(_by_lookalike(gates, kind, server, one) for one in spellings), key=_severity)


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


def _by_lookalike(gates: Gates, kind: PatternKind, server: str, name: str) -> Decision:
    hidden = gates.visibility.hides_lookalike(kind, server, name)
    if hidden is not None:
        return Denied(Gate.VISIBILITY, hidden, UNKNOWN)
    record = gates.records.get(server)
    demand = _demand(record, kind, server, name, lookalike=True)
    matched = gates.rules.match_lookalike(kind, server, name)
    return _enforce_any(gates, _tighten(_by_rule(matched), record, demand, server))


def conclude(gates: Gates, needs: NeedsPolicy, answer: PolicyAnswer) -> Settled:
    """Return the final decision from the result of the policy engine."""
    match answer.verdict:
        case PolicyVerdict.REJECT:
            return _enforce(gates, Denied(Gate.POLICY, answer.reason, REFUSED, needs.rule))
        case PolicyVerdict.FORWARD:
            if needs.at_least_approve is not None:
                return _enforce(gates, NeedsApproval(needs.at_least_approve, needs.rule, needs.reason))
            return Forward(needs.rule, reason=answer.reason)
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
    named = dict(gates.for_calls(from_script=True).rules.workflows())
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
    return found if found is not None else Workflow(name)


def open_gates(revision: str = "0") -> Gates:
    """Return gates without any rule: everything is forwarded."""
    return Gates(revision, compile_rules(()))


def _evaluate_gates(gates: Gates, kind: PatternKind, server: str, name: str) -> Decision:
    hidden = gates.visibility.hides(kind, server, name)
    if hidden is not None:
        return _kept(gates, ("hidden", hidden), lambda: Denied(Gate.VISIBILITY, hidden, UNKNOWN))
    matched, record = gates.rules.match(kind, server, name), gates.records.get(server)
    demand = _demand(record, kind, server, name, lookalike=False)
    # A label names one rule. The server matters only if its record requires more than the rule.
    reasons = (matched.label,) if demand is ApprovalDemand.FORWARD else (matched.label, demand, server)
    return _kept(gates, reasons, lambda: _enforce_any(gates, _tighten(_by_rule(matched), record, demand, server)))


def _kept(gates: Gates, reasons: tuple[str, ...], decision: Callable[[], Decision]) -> Decision:
    found = gates._distinct.get(reasons)
    if found is None:
        if len(gates._distinct) >= MAX_DISTINCT:
            gates._distinct.clear()
        found = gates._distinct[reasons] = decision()
    return found


def _severity(decision: Decision) -> tuple[Strictness, bool]:
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


def _by_rule(matched: Matched) -> Decision:
    match matched.action:
        case Action.FORWARD:
            return Forward(matched.label)
        case Action.APPROVE:
            return NeedsApproval(matched.workflow or DEFAULT_WORKFLOW, matched.label, matched.reason)
        case Action.DENY:
            return Denied(Gate.RULES, matched.reason or "denied by rule", REFUSED, matched.label)
        case Action.POLICY:
            return NeedsPolicy(matched.policy_id, matched.workflow, matched.label, reason=matched.reason)
        case _:
            assert_never(matched.action)


def _tighten(decision: Decision, record: ApprovalPolicy | None, demand: ApprovalDemand, server: str) -> Decision:
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
            return _at_least_approve(decision, record.workflow or DEFAULT_WORKFLOW, label)
        case _:
            assert_never(demand)


def _at_least_approve(decision: Forward | NeedsPolicy | NeedsApproval, workflow: str, label: str) -> Decision:
    match decision:
        case Forward():
            return NeedsApproval(workflow, label)
        case NeedsPolicy():
            return replace(decision, at_least_approve=workflow)
        case NeedsApproval():
            return decision
        case _:
            assert_never(decision)


def _enforce_any(gates: Gates, decision: Decision) -> Decision:
    return decision if isinstance(decision, NeedsPolicy) else _enforce(gates, decision)


def _enforce(gates: Gates, decision: Settled) -> Settled:
    if gates.profile is EnforcementProfile.PRODUCTION:
        return decision
    match decision:
        case Forward():
            return decision
        case NeedsApproval():
            return Forward(decision.rule, Note.WOULD_HOLD, f"workflow {decision.workflow}")
        case Denied():
            return Forward(decision.rule, Note.WOULD_DENY, decision.reason)
        case _:
            assert_never(decision)


def _approval_by_policy(gates: Gates, needs: NeedsPolicy, answer: PolicyAnswer) -> Settled:
    """If several policies name several workflows, the one with the most approvals is used."""
    picked: list[str] = list(answer.workflows) or [needs.workflow or DEFAULT_WORKFLOW]
    if needs.at_least_approve is not None:
        picked.append(needs.at_least_approve)
    unknown = [name for name in picked if name not in gates.workflows and name != DEFAULT_WORKFLOW]
    if unknown:
        return Denied(Gate.POLICY, f"the policy picked an unknown workflow {unknown[0]!r}", REFUSED, needs.rule)
    return NeedsApproval(_strictest(gates, picked), needs.rule, needs.reason)


def _strictest(gates: Gates, names: Iterable[str]) -> str:
    # max keeps the first of equals, so the order of the policies decides between equally strict workflows.
    return max(names, key=lambda name: workflow_named(gates, name).approvals_needed)
