"""From what the gates said about a name to the final word about one call, with its actual arguments.

A tool that is simply forwarded never comes here. Where a rule asks the policy, the arguments are read strictly and the engine is
asked; where people must agree, a standing grant may answer for them. Nothing is written and nobody is asked here. The recheck
before a dispatch goes the same way, so both can only agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Approval, Binding, State
from taskgate.core.governance.approver import APPROVER_ROLE, Approver
from taskgate.core.governance.decision import Decision, Denied, Forward, Gate, NeedsApproval, NeedsPolicy, Settled
from taskgate.core.governance.grants import Grant, covering
from taskgate.core.governance.pipeline import (
    REFUSED,
    PolicyAnswer,
    PolicyVerdict,
    conclude,
    decide,
    decide_unlisted,
    workflow_named,
)
from taskgate.core.governance.recheck import POLICY_DRIFT, Present, Stopped, recheck
from taskgate.core.governance.rehearse import RecordedCall, RuleBook
from taskgate.core.governance.workflow import DEFAULT_WORKFLOW, Workflow
from taskgate.core.identity.caller import Caller, CredentialFacts
from taskgate.core.patterns import PatternKind, judged_skeleton
from taskgate.core.resource_uri import normal_form
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Subset
from taskgate.core.strict_json import AmbiguousJson
from taskgate.core.tasks.endings import refused
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import TransitionEvent
from taskgate.core.text.confusables import imitated_property
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import ToolRef, Views
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.strict_arguments import strict_digest, strict_value
from taskgate.ports.policy_engine import PolicyRequest, PolicyTime
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


def asked_of_tool(caller: Caller, tool: ToolRef, arguments: bytes) -> Asked:
    """A call of a tool that a view shows, or lets pass although its server does not list it."""
    return Asked(
        caller.principal,
        caller.roles,
        caller.scope,
        tool.server,
        tool.name,
        arguments,
        tool.definition_digest,
        PatternKind.TOOL,
        schema_of(tool.entry),
        tool.revision,
        caller.facts,
    )


def asked_to_read(
    caller: Caller, kind: PatternKind, server: str, name: str, arguments: bytes | None, *, revision: str
) -> Asked:
    """A request for a resource or a prompt. Only prompts have arguments; what is judged of a resource is its URI."""
    judged = arguments if arguments is not None and kind is PatternKind.PROMPT else wire.encode({"name": name})
    return Asked(
        caller.principal,
        caller.roles,
        caller.scope,
        server,
        name,
        judged,
        kind=kind,
        scope_revision=revision,
        facts=caller.facts,
    )


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
        value = strict_value(asked.arguments)
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
    read_arguments(asked)
    return Binding(
        asked.principal,
        asked.server,
        asked.name,
        strict_digest(asked.arguments),
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


# The recheck before a call that became a task is sent: would the gates still say what they said?
#
# Runs inside the store's transaction that writes the intent, on the store's own thread, so it only reads: the plan in
# force, the lists of the servers, the standing grants. Whatever differs from what people agreed to ends the task, and
# not one byte goes out.

OWN_SERVER: Final = "taskgate"
"""Under this name rules and the audit log know the gateway's own tools. No server can have it."""
_NOT_RUN = "The call was not executed."
_ENTRIES: Final = {
    PatternKind.TOOL: (EntryKind.TOOL,),
    PatternKind.PROMPT: (EntryKind.PROMPT,),
    PatternKind.RESOURCE: (EntryKind.RESOURCE, EntryKind.TEMPLATE),
}


class PreSendRecheck:
    def __init__(
        self, plan: Live[Plan], catalogs: Catalogs, grants: StandingGrants, expiries: ApprovalExpiries, views: Views
    ) -> None:
        self._expiries = expiries
        self._views = views
        self._plan = plan
        self._catalogs = catalogs
        self._grants = grants

    async def prepare(self, task: Task) -> None:
        """A call that people approved is compared with the tool as it is now, not as it was listed a while ago."""
        if task.approval_id is not None and task.attempts == 0:
            await self._catalogs.refresh(task.server)
        else:
            await self._catalogs.ready([task.server])

    def __call__(self, task: Task, approval: Approval | None, now_ms: int) -> TransitionEvent | None:
        """None lets the call go; otherwise what ends it."""
        passed_ms = 0 if approval is None else self._expiries.passed_ms(approval)
        stopped = self._why_not(task, approval, max(now_ms, passed_ms))
        if stopped is None:
            return None
        text = stopped.reason if task.may_have_been_sent else f"{stopped.reason} {_NOT_RUN}"
        data = {"tool": task.wire_name, "task_id": task.id}
        return refused(task, CallerError(stopped.error_type, text, gate=Gate.APPROVAL.value, data=data))

    def _why_not(self, task: Task, approval: Approval | None, now_ms: int) -> Stopped | None:
        plan = self._plan.value
        asked = Asked(
            task.principal,
            plan.governing.roles.get(task.principal, frozenset()),
            task.scope,
            task.server,
            task.tool,
            task.arguments,
            self.definition(task.server, task.tool),
            facts=task.facts,
        )
        decision = self.evaluated(plan, asked, now_ms)
        if approval is None or approval.state is State.USED:
            return _without_approval(decision, spent=approval is not None)
        return self.recheck(plan, approval, asked, decision, now_ms)

    def evaluated(self, plan: Plan, asked: Asked, now_ms: int) -> Settled:
        # What the session narrowed further holds as long as the session; the scope may have shrunk since.
        subset = self._views.subset(plan, asked.scope, SessionRequest())
        if asked.server != OWN_SERVER and not _admits(subset, asked.kind, asked.server, asked.name):
            return Denied(Gate.VISIBILITY, "the scope no longer has it", REFUSED)
        decision = self._decision(plan, subset, asked.kind, asked.server, asked.name)
        try:
            return evaluate(plan, asked, decision, self._grants.current, now_ms)
        except CallerError as problem:
            return Denied(Gate.POLICY, problem.message, REFUSED)

    def _decision(self, plan: Plan, subset: Subset, kind: PatternKind, server: str, name: str) -> Decision:
        """As `View.decision_on`, for whoever holds no view: on the store's thread none can be built."""
        held = self._catalogs.quarantined
        offer = self._catalogs.offer(server)
        entries = [e for k in _ENTRIES[kind] for e in offer.entries.get(k, ())] if offer is not None else []
        if any(entry.name == name for entry in entries):
            return decide(plan.gates, kind, server, name, quarantined=held)
        excluded = subset.denies_lookalike(server, name, kind)
        if excluded is not None:
            return Denied(Gate.VISIBILITY, excluded.detail, REFUSED)
        if kind is PatternKind.TOOL and offer is not None and offer.omitted.covers(name):
            return Denied(Gate.VISIBILITY, "omitted from its server's list", REFUSED)
        looks = judged_skeleton(name, kind)
        alike = [entry.name for entry in entries if judged_skeleton(entry.name, kind) == looks]
        withheld = any(
            not _admits(subset, kind, server, other)
            or isinstance(decide(plan.gates, kind, server, other, quarantined=held), Denied)
            for other in alike
        )
        return decide_unlisted(plan.gates, kind, server, name, quarantined=held, withheld=(looks,) if withheld else ())

    def recheck(self, plan: Plan, approval: Approval, asked: Asked, decision: Settled, now_ms: int) -> Stopped | None:
        found = recheck(
            approval,
            Present(
                asked.principal,
                asked.server,
                asked.name,
                _digest(asked.arguments),
                asked.definition_digest,
                plan.gates.revision,
                decision,
                _known(plan, approval.workflow),
                standing(plan, approval.binding, approval.workflow),
                now_ms,
            ),
        )
        return found if isinstance(found, Stopped) else None

    def definition(self, server: str, tool: str) -> str:
        """The digest of a tool's definition as it is listed now; empty for a tool that is not listed."""
        entry = entry_of(self._catalogs, server, tool)
        return self._catalogs.definition(entry) if entry is not None else ""


def _admits(subset: Subset, kind: PatternKind, server: str, name: str) -> bool:
    return subset.admits(server, name) if kind is PatternKind.TOOL else subset.admits_kind(server, name, kind)


def schema_of(entry: CatalogEntry | None) -> Mapping[str, Any]:
    """A tool's input schema, or an empty one where a server gave nothing usable."""
    schema = entry.input_schema if entry is not None else None
    return schema if isinstance(schema, Mapping) else {}


def entry_of(catalogs: Catalogs, server: str, tool: str) -> CatalogEntry | None:
    offer = catalogs.offer(server)
    entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
    return next((entry for entry in entries if entry.name == tool), None)


def standing(plan: Plan, binding: Binding, workflow: str) -> Mapping[str, Approver]:
    """Who may decide today; the caller itself among them where its workflow lets it answer its own question."""
    people = plan.governing.approvers
    known = workflow_named(plan.gates, workflow)
    if binding.kind is PatternKind.TOOL and known.self_approval and workflow in plan.governing.elicits:
        return {**people, binding.principal: as_own_approver(plan, binding.principal)}
    return people


def as_own_approver(plan: Plan, principal: str) -> Approver:
    """The person at the caller, where the operator trusts them with their own calls."""
    roles = plan.governing.roles.get(principal, frozenset()) | {APPROVER_ROLE}
    return plan.governing.person(Approver(principal, roles))


def _known(plan: Plan, workflow: str) -> Workflow | None:
    if workflow != DEFAULT_WORKFLOW and workflow not in plan.gates.workflows:
        return None
    return workflow_named(plan.gates, workflow)


def _without_approval(decision: Settled, *, spent: bool) -> Stopped | None:
    if isinstance(decision, Denied):
        return Stopped(POLICY_DRIFT, "The policy changed and no longer allows this call.")
    if isinstance(decision, NeedsApproval) and not spent:
        return Stopped(POLICY_DRIFT, "The policy changed and now asks for an approval of this call; call again.")
    return None


def _digest(arguments: bytes) -> str:
    try:
        return strict_digest(arguments)
    except AmbiguousJson:
        return ""
