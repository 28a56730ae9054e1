"""Turn the gates' decision on a name into the final decision on one call with its arguments.

Calls that the gates forward unconditionally do not reach this module. If a rule refers to a policy, the arguments are parsed
strictly and the policy engine evaluates them; if approval is needed, a standing grant may replace it. Nothing is written and no
approval is requested here. The recheck before sending uses the same functions, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from taskgate import clock
from taskgate.core.errors import CallerError
from taskgate.core.facts.table import Facts
from taskgate.core.facts.truth import NOT_KNOWN
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.decision import Decision, Forward, NeedsApproval, NeedsPolicy, Residue, Settled
from taskgate.core.governance.grants import Grant, covering
from taskgate.core.governance.pipeline import (
    PolicyAnswer,
    PolicyVerdict,
    conclude,
    settle,
    workflow_named,
)
from taskgate.core.governance.rehearse import RecordedCall, RuleBook
from taskgate.core.patterns import PatternKind
from taskgate.core.resource_uri import normal_form
from taskgate.core.strict_json import AmbiguousJson
from taskgate.core.text.confusables import lookalike_property
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.strict_arguments import strict_digest, strict_value
from taskgate.ports.policy_engine import PolicyRequest, PolicyTime
from taskgate.telemetry.logs import log


def evaluate(
    plan: Plan,
    call: GatedCall,
    decision: Decision,
    grants: Iterable[Grant],
    now_ms: int,
    *,
    at_s: int | None = None,
) -> Settled:
    """Return the final decision. Raises CallerError for arguments that parsers could read differently.

    `at_s` is the time that conditions and policies read; default now.
    """
    at_s = int(clock.wall()) if at_s is None else at_s
    if isinstance(decision, Residue):
        decision = settle(plan.gates, decision, facts_of(plan, call, at_s))
    if isinstance(decision, NeedsPolicy):
        decision = conclude(plan.gates, decision, _policy_answer(plan, call, decision, at_s))
    if isinstance(decision, NeedsApproval):
        grant = _granted(plan, call, decision.workflow, grants, now_ms)
        if grant is not None:
            return Forward(f"grant {grant.id}")
    return decision


def caller_facts_of(plan: Plan, call: GatedCall) -> Facts:
    """Return what is known of the caller of a call."""
    return Facts(
        scope=call.scope,
        principal=call.principal,
        token_id=plan.governing.token_of(call.principal),
        roles=call.roles,
        from_script=call.from_script,
    )


def facts_of(plan: Plan, call: GatedCall, at_s: int) -> Facts:
    """Return what conditions can depend on. Raises CallerError if the arguments are ambiguous and a rule depends on them."""
    reads_arguments = "argument" in plan.gates.rules.facts
    return replace(
        caller_facts_of(plan, call),
        kind=call.kind,
        server=call.server,
        name=call.name,
        tags=plan.gates.tags.get(call.server, frozenset()),
        risk=NOT_KNOWN if call.risk is None else call.risk,
        client=NOT_KNOWN if call.client is None else call.client,
        generation=NOT_KNOWN if call.generation is None else call.generation,
        at_s=at_s,
        arguments=read_arguments(call) if reads_arguments else NOT_KNOWN,
    )


def read_arguments(call: GatedCall) -> Mapping[str, Any]:
    """Parse the arguments strictly. Raises CallerError if they are ambiguous: those can be neither evaluated nor approved."""
    try:
        value = strict_value(call.arguments)
    except AmbiguousJson as error:
        raise CallerError(
            "invalid_params",
            f"The arguments of {call.name[:120]!r} could be read in two ways ({error}), so they cannot be evaluated. "
            "The call was not executed.",
        ) from None
    if not isinstance(value, dict):
        raise CallerError("invalid_params", '"arguments" must be an object.')
    similar_name = lookalike_property(value, call.input_schema)
    if similar_name is not None:
        raise CallerError(
            "invalid_params",
            f"The argument {similar_name[0][:80]!r} imitates {similar_name[1][:80]!r}, which this tool declares. "
            "The call was not executed.",
        )
    return value


def binding_of(plan: Plan, call: GatedCall) -> Binding:
    """Return what an approval is bound to. Its deadline is set when the approval is requested."""
    read_arguments(call)
    return Binding(
        principal=call.principal,
        server=call.server,
        tool=call.name,
        arguments_digest=strict_digest(call.arguments),
        definition_digest=call.definition_digest,
        policy_revision=plan.gates.revision,
        expires_at_ms=0,
        kind=call.kind,
        scope=call.scope,
        script_digest=call.script_digest,
    )


def log_note(decision: Forward, name: str, principal: str) -> None:
    """Log what the production profile would have done with a call that the development profile forwards."""
    if decision.note is not None:
        log.warning(decision.note.value, name=name, caller=principal, rule=decision.rule, why=decision.reason)


def rule_book(plan: Plan) -> RuleBook:
    """Return the rules of a plan, to be tried on recorded calls. Policies are evaluated as of the time of each call."""

    def ask(decision: NeedsPolicy, recorded: RecordedCall) -> PolicyAnswer:
        arguments = (recorded.arguments or "{}").encode()
        roles = frozenset(recorded.roles)
        call = GatedCall(
            principal=recorded.principal,
            roles=roles,
            scope=recorded.scope,
            server=recorded.server,
            name=recorded.name,
            arguments=arguments,
            kind=recorded.kind,
            from_script=recorded.from_script,
            client=recorded.client,
            generation=recorded.generation,
            risk=recorded.risk,
        )
        return _policy_answer(plan, call, decision, recorded.at_ms // 1000)

    return RuleBook(
        gates=plan.gates,
        registry=plan.registry,
        scopes=plan.scopes,
        ask_policy=ask,
        token_ids=plan.governing.token_ids,
    )


def _policy_answer(plan: Plan, call: GatedCall, decision: NeedsPolicy, at_s: int) -> PolicyAnswer:
    engine = plan.governing.policy
    if engine is None:
        return PolicyAnswer(PolicyVerdict.REJECT, "there are no policies")
    record = plan.registry.records.get(call.server)
    return engine.evaluate(
        PolicyRequest(
            principal=call.principal,
            roles=call.roles,
            server=call.server,
            name=normal_form(call.name) if call.kind is PatternKind.RESOURCE else call.name,
            arguments=read_arguments(call),
            scope=call.scope,
            policy_id=decision.policy_id,
            time=PolicyTime.at(at_s),
            tags=record.tags if record is not None else frozenset(),
            kind=call.kind,
            facts=call.facts,
            known=facts_of(plan, call, at_s),
        )
    )


def _granted(plan: Plan, call: GatedCall, workflow: str, grants: Iterable[Grant], now_ms: int) -> Grant | None:
    matching = [grant for grant in grants if (grant.server, grant.tool) == (call.server, call.name)]
    if not matching or not plan.governing.grants or call.kind is not PatternKind.TOOL:
        return None
    binding = binding_of(plan, call)
    return covering(matching, workflow_named(plan.gates, workflow), binding, plan.governing.approvers, now_ms)
