"""Check once more, immediately before a task's call is sent, that the gates still permit it.

This runs on the store's thread, inside the transaction that writes the intent, so it only reads: the plan in force, the servers'
lists and the standing grants. Any difference from what was approved ends the task before a byte is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.catalog.own_tool_names import OWN_SERVER
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Approval, Binding, State
from taskgate.core.governance.approver import APPROVER_ROLE, Approver
from taskgate.core.governance.decision import Decision, Denied, Gate, NeedsApproval, Settled, describe
from taskgate.core.governance.pipeline import (
    REFUSED,
    RiskOf,
    decide,
    decide_listed,
    decide_unlisted,
    is_configured,
    workflow_named,
)
from taskgate.core.governance.recheck import POLICY_DRIFT, CallAtDispatch, Stopped, recheck
from taskgate.core.governance.workflow import Workflow
from taskgate.core.patterns import PatternKind, checked_skeleton
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Subset
from taskgate.core.strict_json import AmbiguousJson
from taskgate.core.tasks.endings import refused
from taskgate.core.tasks.task import Task
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.risks import risks_of
from taskgate.gateway.catalog.tool_entries import entry_of
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.governance.evaluate import caller_facts_of, evaluate
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.strict_arguments import strict_digest
from taskgate.store.operations.tasks import Forbidden

CREDENTIAL_REVOKED: Final = "credential_revoked"
_NOT_RUN = "The call was not executed."
_ENTRIES: Final = {
    PatternKind.TOOL: (EntryKind.TOOL,),
    PatternKind.PROMPT: (EntryKind.PROMPT,),
    PatternKind.RESOURCE: (EntryKind.RESOURCE, EntryKind.TEMPLATE),
}


class PreSendRecheck(msgspec.Struct, eq=False):
    plan: Live[Plan]
    catalogs: Catalogs
    grants: StandingGrants
    expiries: ApprovalExpiries
    views: Views
    people: KnownPeople

    async def prepare(self, task: Task) -> None:
        """Fetch the server's lists if the call was approved, so that it is compared with the tool's current definition."""
        if task.approval_id is not None and task.attempts == 0:
            await self.catalogs.refresh(task.server)
        else:
            await self.catalogs.ready([task.server])

    def __call__(self, task: Task, approval: Approval | None, now_ms: int) -> Forbidden | None:
        """Return None if the call may be sent, otherwise why not."""
        passed_ms = 0 if approval is None else self.expiries.passed_ms(approval)
        stopped = self._stopped(task, approval, max(now_ms, passed_ms))
        if stopped is None:
            return None
        text = stopped.reason if task.may_have_been_sent else f"{stopped.reason} {_NOT_RUN}"
        data = {"tool": task.wire_name, "task_id": task.id}
        error = CallerError(stopped.error_type, text, gate=Gate.APPROVAL.value, data=data)
        return Forbidden(refused(task, error), self._entry(task, stopped))

    def _entry(self, task: Task, stopped: Stopped) -> AuditEntry:
        return AuditEntry(
            at_ms=0,
            event="call_denied",
            principal=task.principal,
            scope=task.scope,
            server=task.server,
            name=task.tool,
            arguments_digest=task.digest,
            decision=stopped.error_type,
            policy_revision=revisions(self.plan.value.gates.revision, task.scope_revision),
            reason=stopped.detail or stopped.reason,
            task_id=task.id,
            executed=("maybe" if task.may_have_been_sent else "no"),
        )

    def _stopped(self, task: Task, approval: Approval | None, now_ms: int) -> Stopped | None:
        plan = self.plan.value
        if task.parent and self.people.was_revoked_since(task.principal, task.created_ms):
            return Stopped(CREDENTIAL_REVOKED, "The credential of the caller of this script was revoked.")
        withdrawn = script_withdrawn(plan, task) if task.parent else None
        if withdrawn is not None:
            return withdrawn
        call = GatedCall(
            principal=task.principal,
            roles=plan.governing.roles.get(task.principal, frozenset()),
            scope=task.scope,
            server=task.server,
            name=task.tool,
            arguments=task.arguments,
            definition_digest=self.definition(task.server, task.tool),
            facts=task.facts,
            from_script=bool(task.parent),
            script_digest=task.script_digest,
            client=task.client,
            generation=task.generation,
            risk=self._risks(plan, task.server)(task.tool),
        )
        decision = self.evaluated(plan, call, now_ms)
        if approval is None or approval.state is State.USED:
            return _without_approval(decision, spent=approval is not None)
        return self.recheck(plan, approval, call, decision, now_ms)

    def evaluated(self, plan: Plan, call: GatedCall, now_ms: int) -> Settled:
        # A session's own narrowing ends with the session, so only the scope is checked; it may have shrunk since.
        subset = self.views.subset(plan, call.scope, SessionRequest())
        if call.server != OWN_SERVER and not _admits(subset, call.kind, call.server, call.name):
            return Denied(Gate.VISIBILITY, "the scope no longer has it", REFUSED)
        decision = self._decision(plan, subset, call)
        try:
            return evaluate(plan, call, decision, self.grants.current, now_ms)
        except CallerError as problem:
            return Denied(Gate.POLICY, problem.message, REFUSED)

    def _decision(self, plan: Plan, subset: Subset, call: GatedCall) -> Decision:
        """Like `View.decision_on`, without a view: none can be built on the store's thread."""
        kind, server, name = call.kind, call.server, call.name
        gates, held = plan.gates.of_caller(caller_facts_of(plan, call)), self.catalogs.quarantined
        offer = self.catalogs.offer(server)
        risk_of = self._risks(plan, server)
        entries = [e for k in _ENTRIES[kind] for e in offer.entries.get(k, ())] if offer is not None else []
        is_listed = any(entry.name == name for entry in entries)
        others = self.catalogs.alike(kind, server, name)
        if is_listed and not others:
            return decide(gates, kind, server, name, quarantined=held, risk_of=risk_of)
        excluded = subset.denies_lookalike(server, name, kind)
        if excluded is not None:
            return Denied(Gate.VISIBILITY, excluded.detail, REFUSED)
        if is_listed:
            return decide_listed(gates, kind, server, name, others, quarantined=held, risk_of=risk_of)
        if kind is PatternKind.TOOL and offer is not None and offer.omitted.covers(name):
            return Denied(Gate.VISIBILITY, "omitted from its server's list", REFUSED)
        looks = checked_skeleton(name, kind)
        alike = [entry.name for entry in entries if checked_skeleton(entry.name, kind) == looks]
        withheld = any(
            not _admits(subset, kind, server, other)
            or isinstance(decide(gates, kind, server, other, quarantined=held, risk_of=risk_of), Denied)
            for other in alike
        )
        hidden = (looks,) if withheld else ()
        return decide_unlisted(gates, kind, server, name, quarantined=held, withheld=hidden, risk_of=risk_of)

    def _risks(self, plan: Plan, server: str) -> RiskOf:
        return risks_of(plan, server, self.catalogs.offer(server), self.catalogs.stated_risks)

    def recheck(
        self, plan: Plan, approval: Approval, call: GatedCall, decision: Settled, now_ms: int
    ) -> Stopped | None:
        found = recheck(
            approval,
            CallAtDispatch(
                principal=call.principal,
                server=call.server,
                tool=call.name,
                arguments_digest=_digest(call.arguments),
                definition_digest=call.definition_digest,
                policy_revision=plan.gates.revision,
                decision=decision,
                workflow=_known(plan, approval.workflow),
                approvers=standing(plan, approval.binding, approval.workflow),
                now_ms=now_ms,
            ),
        )
        return found if isinstance(found, Stopped) else None

    def definition(self, server: str, tool: str) -> str:
        """Return the digest of the tool's current definition; empty if it is not listed."""
        entry = entry_of(self.catalogs, server, tool)
        return self.catalogs.definition(entry) if entry is not None else ""


def script_withdrawn(plan: Plan, task: Task) -> Stopped | None:
    """Why the caller of a script, or of a call of one, may no longer run scripts: the configuration has no credential of it, or the
    scope has `scripts: off`.
    """
    scope = plan.scopes.get(task.scope)
    if not plan.has_credential_of(task.principal):
        text = "The configuration no longer has the credential of the caller of this script."
        return Stopped(CREDENTIAL_REVOKED, text)
    if scope is None or not scope.scripts:
        return Stopped(REFUSED, f"Scripts are switched off in the scope {task.scope}.")
    return None


def _admits(subset: Subset, kind: PatternKind, server: str, name: str) -> bool:
    return subset.admits(server, name) if kind is PatternKind.TOOL else subset.admits_kind(server, name, kind)


def standing(plan: Plan, binding: Binding, workflow: str) -> Mapping[str, Approver]:
    """Return the current approvers, including the caller itself if the workflow allows self-approval by elicitation."""
    people = plan.governing.approvers
    known = workflow_named(plan.gates, workflow)
    if binding.kind is PatternKind.TOOL and known.self_approval and workflow in plan.governing.elicits:
        return {**people, binding.principal: as_own_approver(plan, binding.principal)}
    return people


def as_own_approver(plan: Plan, principal: str) -> Approver:
    """Return the caller as an approver of its own calls (`self_approval`)."""
    roles = plan.governing.roles.get(principal, frozenset()) | {APPROVER_ROLE}
    return plan.governing.person(Approver(principal, roles))


def _known(plan: Plan, workflow: str) -> Workflow | None:
    return workflow_named(plan.gates, workflow) if is_configured(plan.gates, workflow) else None


def _without_approval(decision: Settled, *, spent: bool) -> Stopped | None:
    if isinstance(decision, Denied):
        return Stopped(POLICY_DRIFT, "The policy changed and no longer allows this call.", describe(decision))
    if isinstance(decision, NeedsApproval) and not spent:
        text = "The policy changed and now requires an approval of this call; call again."
        return Stopped(POLICY_DRIFT, text, describe(decision))
    return None


def _digest(arguments: bytes) -> str:
    try:
        return strict_digest(arguments)
    except AmbiguousJson:
        return ""
