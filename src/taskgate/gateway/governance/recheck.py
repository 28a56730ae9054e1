"""The recheck before a call that became a task is sent: would the gates still say what they said?

Runs inside the store's transaction that writes the intent, on the store's own thread, so it only reads: the plan in force, the
lists of the servers, the standing grants. Whatever differs from what people agreed to ends the task, and not one byte goes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import (
    APPROVER_ROLE,
    DEFAULT_WORKFLOW,
    Approval,
    Approver,
    Binding,
    State,
    Workflow,
)
from taskgate.core.governance.decision import (
    POLICY_DRIFT,
    Decision,
    Denied,
    Gate,
    NeedsApproval,
    Present,
    Settled,
    Stopped,
    recheck,
)
from taskgate.core.governance.digest import AmbiguousJson, digest_of_json
from taskgate.core.governance.pipeline import REFUSED, decide, decide_unlisted, workflow_named
from taskgate.core.patterns import PatternKind, judged_skeleton
from taskgate.core.scoping.registry import SessionRequest
from taskgate.core.scoping.subset import Subset
from taskgate.core.tasks.endings import refused
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import TransitionEvent
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.governance.evaluate import Asked, evaluate
from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.plan.plan import Live, Plan

OWN_SERVER: Final = "taskgate"
"""Under this name rules and the audit log know the gateway's own tools. No server can have it."""
_NOT_RUN = "The call was not executed."
_ENTRIES: Final = {
    PatternKind.TOOL: (EntryKind.TOOL,),
    PatternKind.PROMPT: (EntryKind.PROMPT,),
    PatternKind.RESOURCE: (EntryKind.RESOURCE, EntryKind.TEMPLATE),
}


class PreSendRecheck:
    def __init__(self, plan: Live[Plan], catalogs: Catalogs, grants: StandingGrants, views: Views) -> None:
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
        stopped = self._why_not(task, approval, now_ms)
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
        return entry.digest if entry is not None else ""


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
        return digest_of_json(arguments)
    except AmbiguousJson:
        return ""
