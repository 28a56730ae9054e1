"""Approvals, grants and tasks as rows of the JSON API. Field names are stable: fields are added, never removed."""

from __future__ import annotations

from typing import Any

from taskgate.core.governance.approval import Approval, Vote
from taskgate.core.governance.card import Card
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.script_plan import plan_summary
from taskgate.core.governance.workflow import Workflow
from taskgate.core.history.classify import outcome_of_task
from taskgate.core.redaction.difference import Difference
from taskgate.core.tasks.projections_stateful import stateful_status, status_message
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso
from taskgate.ports.approval_store import HeldCall


def approval_row(held: HeldCall, approval: Approval, workflow: Workflow, url: str) -> dict[str, Any]:
    """One row of the list. Arguments are only in the detail, where redacted fields are marked."""
    bound = approval.binding
    return {
        "id": approval.id,
        "state": approval.state.value,
        "tool": held.wire_name,
        "server": bound.server,
        "name": bound.tool,
        "kind": bound.kind.value,
        "requester": bound.principal,
        "scope": bound.scope,
        "workflow": approval.workflow,
        "rule": approval.rule,
        "arguments_digest": bound.arguments_digest,
        "definition_digest": bound.definition_digest,
        "approvals_needed": workflow.approvals_needed,
        "approvals_given": sum(1 for vote in approval.votes if vote.verdict.value == "approve"),
        "asked_at": iso(approval.asked_at_ms),
        "expires_at": iso(bound.expires_at_ms),
        "decided_at": iso(approval.decided_at_ms) if approval.decided_at_ms is not None else None,
        "reason": approval.reason,
        "task_id": held.task_id,
        "plan_summary": plan_summary(approval.plan) if approval.plan is not None else None,
        "from_script": approval.from_script.as_json() if approval.from_script is not None else None,
        "url": url,
    }


def approval_detail(row: dict[str, Any], card: Card) -> dict[str, Any]:
    """The row of the list, and everything that an approver must see."""
    return {
        **row,
        "arguments": card.arguments,
        "script": card.script,
        "plan": card.plan.as_json() if card.plan is not None else None,
        "hidden": list(card.hidden),
        "deceptive": list(card.deceptive),
        "not_validated": card.unvalidated,
        "changes": changes(card.changes),
        "script_changes": card.script_changes.as_json() if card.script_changes is not None else None,
        "votes": [vote_row(vote) for vote in card.votes],
    }


def changes(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "left_out": difference.left_out,
        "list": [
            {"path": c.path, "kind": c.kind.value, "before": c.before, "after": c.after, "hidden": c.hidden}
            for c in difference.changes
        ],
    }


def vote_row(vote: Vote) -> dict[str, Any]:
    return {
        "approver": vote.approver,
        "verdict": vote.verdict.value,
        "at": iso(vote.at_ms),
        "reason": vote.reason,
        "channel": vote.channel,
    }


def grant_row(grant: Grant) -> dict[str, Any]:
    return {
        "id": grant.id,
        "workflow": grant.workflow,
        "server": grant.server,
        "tool": grant.tool,
        "scope": grant.scope,
        "principal": grant.principal,
        "exact_arguments": grant.arguments_digest is not None,
        "script_digest": grant.script_digest,
        "granted_by": list(grant.granted_by),
        "granted_at": iso(grant.granted_at_ms),
        "until": iso(grant.until_ms),
        "approval_id": grant.approval_id,
        "revoked_at": iso(grant.revoked_at_ms) if grant.revoked_at_ms is not None else None,
        "revoked_by": grant.revoked_by or None,
    }


def task_row(task: Task) -> dict[str, Any]:
    outcome = outcome_of_task(task)
    return {
        "id": task.id,
        "state": task.state.value,
        "tool": task.wire_name,
        "name": task.tool,
        "server": task.server,
        "principal": task.principal,
        "scope": task.scope,
        "message": task.status_message,
        "progress": task.progress,
        "progress_total": task.progress_total,
        "created_at": iso(task.created_ms),
        "updated_at": iso(task.updated_ms),
        "finished_at": iso(task.finished_ms) if task.finished_ms is not None else None,
        "ttl_ms": task.ttl_ms,
        "approval_id": task.approval_id,
        "executed": task.executed.value if task.executed is not None else None,
        "outcome": outcome.value if outcome is not None else None,
        "rerun_of": task.rerun_of or None,
    }


def status_event(task: Task) -> dict[str, Any]:
    """The data of a `task_status` event: the words of the stateful generation, and our row."""
    shown = {"taskId": task.id, "status": stateful_status(task), "timestamp": iso(task.updated_ms)}
    message = status_message(task)
    return {**shown, **({"statusMessage": message} if message is not None else {}), **task_row(task)}
