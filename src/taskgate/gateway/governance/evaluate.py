"""From what the gates said about a name to the final word about one call, with its actual arguments.

A tool that is simply forwarded never comes here. Where a rule asks the policy, the arguments are read strictly and the engine is
asked; where people must agree, a standing grant may answer for them. Nothing is written and nobody is asked here. The recheck
before a dispatch goes the same way, so both can only agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from taskgate import clock
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.decision import Decision, Forward, Grant, NeedsApproval, NeedsPolicy, Settled, covering
from taskgate.core.governance.digest import AmbiguousJson, digest, imitated_property, parse_strict
from taskgate.core.governance.pipeline import PolicyAnswer, PolicyVerdict, conclude, workflow_named
from taskgate.core.governance.rehearse import RecordedCall, RuleBook
from taskgate.core.identity import CredentialFacts
from taskgate.core.patterns import PatternKind
from taskgate.core.resource_uri import normal_form
from taskgate.gateway.plan.plan import Plan
from taskgate.ports.services import PolicyRequest, PolicyTime
from taskgate.telemetry.logs import log


@dataclass(frozen=True, slots=True)
class Asked:
    """One call as the gates see it. `arguments` are the exact bytes that would be sent."""

    principal: str
    roles: frozenset[str]
    scope: str
    server: str
    name: str
    arguments: bytes
    definition_digest: str = ""
    kind: PatternKind = PatternKind.TOOL
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    scope_revision: str = ""
    facts: CredentialFacts | None = None


def evaluate(plan: Plan, asked: Asked, decision: Decision, grants: Iterable[Grant], now_ms: int) -> Settled:
    """The final word. Arguments that two programs could read differently are refused before anybody is asked."""
    if isinstance(decision, NeedsPolicy):
        decision = conclude(plan.gates, decision, _policy_answer(plan, asked, decision, int(clock.wall())))
    if isinstance(decision, NeedsApproval):
        grant = _granted(plan, asked, decision.workflow, grants, now_ms)
        if grant is not None:
            return Forward(f"grant {grant.id}")
    return decision


def read_arguments(asked: Asked) -> Mapping[str, Any]:
    """The arguments, read strictly; what is ambiguous cannot be judged nor approved."""
    try:
        value = parse_strict(asked.arguments)
    except AmbiguousJson as error:
        raise CallerError(
            "invalid_params",
            f"The arguments of {asked.name[:120]!r} could be read in two ways ({error}), so they cannot be judged. "
            "The call was not executed.",
        ) from None
    if not isinstance(value, dict):
        raise CallerError("invalid_params", '"arguments" must be an object.')
    imitated = imitated_property(value, asked.input_schema)
    if imitated is not None:
        raise CallerError(
            "invalid_params",
            f"The argument {imitated[0][:80]!r} imitates {imitated[1][:80]!r}, which this tool declares. "
            "The call was not executed.",
        )
    return value


def binding_of(plan: Plan, asked: Asked) -> Binding:
    """What people would agree to. Its deadline is set when they are asked."""
    return Binding(
        asked.principal,
        asked.server,
        asked.name,
        digest(read_arguments(asked)),
        asked.definition_digest,
        plan.gates.revision,
        0,
        asked.kind,
        asked.scope,
    )


def tell_note(decision: Forward, asked_name: str, principal: str) -> None:
    """The development profile lets things pass and says what production would have done."""
    if decision.note is not None:
        log.warning(decision.note.value, name=asked_name, caller=principal, rule=decision.rule, why=decision.reason)


def rule_book(plan: Plan) -> RuleBook:
    """The rules of a plan, to rehearse recorded calls with: policies are asked as if it were the moment of the call."""

    def ask(decision: NeedsPolicy, call: RecordedCall) -> PolicyAnswer:
        arguments = (call.arguments or "{}").encode()
        roles = frozenset(call.roles)
        asked = Asked(call.principal, roles, call.scope, call.server, call.name, arguments, kind=call.kind)
        return _policy_answer(plan, asked, decision, call.at_ms // 1000)

    return RuleBook(plan.gates, plan.registry, plan.scopes, ask)


def _policy_answer(plan: Plan, asked: Asked, decision: NeedsPolicy, at_s: int) -> PolicyAnswer:
    engine = plan.governing.policy
    if engine is None:
        return PolicyAnswer(PolicyVerdict.REJECT, "there are no policies")
    record = plan.registry.records.get(asked.server)
    return engine.evaluate(
        PolicyRequest(
            asked.principal,
            asked.roles,
            asked.server,
            normal_form(asked.name) if asked.kind is PatternKind.RESOURCE else asked.name,
            read_arguments(asked),
            asked.scope,
            decision.policy_id,
            PolicyTime.at(at_s),
            record.tags if record is not None else frozenset(),
            asked.kind,
            asked.facts,
        )
    )


def _granted(plan: Plan, asked: Asked, workflow: str, grants: Iterable[Grant], now_ms: int) -> Grant | None:
    mine = [grant for grant in grants if (grant.server, grant.tool) == (asked.server, asked.name)]
    if not mine or not plan.governing.grants or asked.kind is not PatternKind.TOOL:
        return None
    wanted = binding_of(plan, asked)
    return covering(mine, workflow_named(plan.gates, workflow), wanted, plan.governing.approvers, now_ms)
