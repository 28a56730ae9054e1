"""Standing grants: approve a tool, or exact arguments, for a scope and for a limited time.

A grant is created from an approval that people gave, is bound to the tool's definition, and covers only callers of the
same scope and tenant (by default only the same principal). It never widens access: a denied tool stays denied, and an
approval under another workflow is still required.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from taskgate.core.governance.approval import (
    Approval,
    Binding,
    State,
    Verdict,
    count_people,
)
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.identity import tenant_of

MAX_GRANT_MS = 24 * 3_600_000
DEFAULT_GRANT_MS = 3_600_000


class GrantProblem(StrEnum):
    """Why a grant cannot be given. The value is the text for the approver."""

    NOT_APPROVED = "only an approved call can be turned into a grant"
    TOO_LONG = "a grant may not last that long"
    BY_TIMEOUT = "no person approved this call; a timeout gives no grant"
    NO_SCRIPT = "the call was not made by a script"


class GrantRefused(ValueError):
    """A grant that cannot be given."""

    def __init__(self, problem: GrantProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class Grant(msgspec.Struct, frozen=True):
    """One standing grant. `arguments_digest` None covers any arguments, `principal` None the whole scope."""

    id: str
    workflow: str
    server: str
    tool: str
    scope: str
    principal: str | None
    arguments_digest: str | None
    definition_digest: str
    granted_at_ms: int
    until_ms: int
    granted_by: tuple[str, ...]
    approval_id: str
    revoked_at_ms: int | None = None
    revoked_by: str = ""
    tenant: str = ""
    """The tenant of the caller of the approved call: the whole scope means callers of the same tenant."""
    script_digest: str | None = None
    """Covers only calls of the script with this source; None covers calls of any origin."""


def grant_from(
    approval: Approval,
    grant_id: str,
    now_ms: int,
    *,
    for_ms: int = DEFAULT_GRANT_MS,
    longest_ms: int = MAX_GRANT_MS,
    exact_arguments: bool = False,
    whole_scope: bool = False,
    same_script: bool = False,
) -> Grant:
    """Return a grant from an approval that was just given by as many people as its workflow requires."""
    if approval.state not in (State.APPROVED, State.USED):
        raise GrantRefused(GrantProblem.NOT_APPROVED)
    if not 0 < for_ms <= min(longest_ms, MAX_GRANT_MS):
        raise GrantRefused(GrantProblem.TOO_LONG)
    people = tuple(dict.fromkeys(vote.approver for vote in approval.votes if vote.verdict is Verdict.APPROVE))
    if not people:
        raise GrantRefused(GrantProblem.BY_TIMEOUT)
    bound = approval.binding
    if same_script and not bound.script_digest:
        raise GrantRefused(GrantProblem.NO_SCRIPT)
    return Grant(
        id=grant_id,
        workflow=approval.workflow,
        server=bound.server,
        tool=bound.tool,
        scope=bound.scope,
        principal=None if whole_scope else bound.principal,
        arguments_digest=bound.arguments_digest if exact_arguments else None,
        definition_digest=bound.definition_digest,
        granted_at_ms=now_ms,
        until_ms=now_ms + for_ms,
        granted_by=people,
        approval_id=approval.id,
        tenant=tenant_of(bound.principal),
        script_digest=bound.script_digest if same_script else None,
    )


def covers(grant: Grant, workflow: Workflow, binding: Binding, approvers: Mapping[str, Approver], now_ms: int) -> bool:
    """Whether the grant covers this call under this workflow, with the current approvers."""
    return (
        grant.revoked_at_ms is None
        and grant.granted_at_ms <= now_ms < grant.until_ms
        and grant.workflow == workflow.name
        and (grant.server, grant.tool, grant.scope) == (binding.server, binding.tool, binding.scope)
        and _is_for(grant, binding.principal)
        and grant.arguments_digest in (None, binding.arguments_digest)
        and grant.script_digest in (None, binding.script_digest)
        and grant.definition_digest == binding.definition_digest
        and _people_still_count(grant, workflow, binding, approvers)
    )


def _is_for(grant: Grant, principal: str) -> bool:
    return grant.tenant == tenant_of(principal) if grant.principal is None else grant.principal == principal


def covering(
    grants: Iterable[Grant], workflow: Workflow, binding: Binding, approvers: Mapping[str, Approver], now_ms: int
) -> Grant | None:
    """Return the first grant that covers this call."""
    return next((grant for grant in grants if covers(grant, workflow, binding, approvers, now_ms)), None)


def revoke(grant: Grant, by: str, now_ms: int) -> Grant:
    """Revoke a grant now; a second revocation changes nothing."""
    if grant.revoked_at_ms is not None:
        return grant
    return replace(grant, revoked_at_ms=now_ms, revoked_by=by)


def _people_still_count(grant: Grant, workflow: Workflow, binding: Binding, approvers: Mapping[str, Approver]) -> bool:
    # Checked for the requester of *this* call: a person's grant must not permit their own call.
    known = [approvers[person] for person in grant.granted_by if person in approvers]
    return all(count_people(part, binding, known) >= part.approvals_needed for part in workflow.each)
