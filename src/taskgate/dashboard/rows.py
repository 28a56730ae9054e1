"""Approvals, grants and tasks as rows of the JSON API. Field names are stable: fields are added, never removed."""

from __future__ import annotations

from msgspec import UNSET

from taskgate.core.governance.approval import Approval, Verdict, Vote
from taskgate.core.governance.grants import Grant
from taskgate.core.governance.held_call import HeldCall
from taskgate.core.governance.script_changes import ScriptChanges
from taskgate.core.governance.script_plan import PlannedScript, ScriptOrigin, plan_summary
from taskgate.core.governance.workflow import Workflow
from taskgate.core.history.classify import outcome_of_task
from taskgate.core.tasks.projections_stateful import stateful_status, status_message
from taskgate.core.tasks.task import Task
from taskgate.core.timestamps import iso
from taskgate.replies.approvals import ApprovalRow, GrantRow, VoteRow
from taskgate.replies.fields import extended
from taskgate.replies.scripts import PlanOfScript, ScriptDifference, ScriptLine, ScriptMaker, ToolInPlan
from taskgate.replies.tasks import OperatorTask, TaskRow, TaskStatus


def approval_row(held: HeldCall, approval: Approval, workflow: Workflow, url: str, *, batchable: bool) -> ApprovalRow:
    bound = approval.binding
    return ApprovalRow(
        id=approval.id,
        state=approval.state,
        tool=held.wire_name,
        server=bound.server,
        name=bound.tool,
        kind=bound.kind.value,
        requester=bound.principal,
        scope=bound.scope,
        workflow=approval.workflow,
        rule=approval.rule,
        arguments_digest=bound.arguments_digest,
        definition_digest=bound.definition_digest,
        approvals_needed=workflow.approvals_needed,
        approvals_given=sum(1 for vote in approval.votes if vote.verdict is Verdict.APPROVE),
        asked_at=iso(approval.asked_at_ms),
        expires_at=iso(bound.expires_at_ms),
        decided_at=iso(approval.decided_at_ms) if approval.decided_at_ms is not None else None,
        reason=approval.reason,
        task_id=held.task_id,
        plan_summary=plan_summary(approval.plan) if approval.plan is not None else None,
        from_script=_origin(approval.from_script),
        url=url,
        batchable=batchable,
    )


def vote_row(vote: Vote) -> VoteRow:
    return VoteRow(
        approver=vote.approver,
        verdict=vote.verdict,
        at=iso(vote.at_ms),
        reason=vote.reason,
        channel=vote.channel,
    )


def grant_row(grant: Grant) -> GrantRow:
    return GrantRow(
        id=grant.id,
        workflow=grant.workflow,
        server=grant.server,
        tool=grant.tool,
        scope=grant.scope,
        principal=grant.principal,
        exact_arguments=grant.arguments_digest is not None,
        script_digest=grant.script_digest,
        granted_by=grant.granted_by,
        granted_at=iso(grant.granted_at_ms),
        until=iso(grant.until_ms),
        approval_id=grant.approval_id,
        revoked_at=iso(grant.revoked_at_ms) if grant.revoked_at_ms is not None else None,
        revoked_by=grant.revoked_by or None,
    )


def task_row(task: Task) -> TaskRow:
    return TaskRow(
        id=task.id,
        state=task.state,
        tool=task.wire_name,
        name=task.tool,
        server=task.server,
        principal=task.principal,
        scope=task.scope,
        message=task.status_message,
        progress=task.progress,
        progress_total=task.progress_total,
        created_at=iso(task.created_ms),
        updated_at=iso(task.updated_ms),
        finished_at=iso(task.finished_ms) if task.finished_ms is not None else None,
        ttl_ms=task.ttl_ms,
        approval_id=task.approval_id,
        executed=task.executed,
        outcome=outcome_of_task(task),
        rerun_of=task.rerun_of or None,
    )


def operator_task(task: Task) -> OperatorTask:
    return extended(
        OperatorTask, task_row(task), caller=task.caller, attempts=task.attempts, keep_result_ms=task.keep_result_ms
    )


def task_status(task: Task) -> TaskStatus:
    """The data of a `task_status` event."""
    message = status_message(task)
    return extended(
        TaskStatus,
        task_row(task),
        task_id=task.id,
        status=stateful_status(task),
        status_message=message if message is not None else UNSET,
        timestamp=iso(task.updated_ms),
    )


def script_plan(plan: PlannedScript) -> PlanOfScript:
    return PlanOfScript(
        tools=[ToolInPlan(tool=tool.tool, meets=tool.meets, lines=tool.lines) for tool in plan.tools],
        tools_left_out=plan.tools_left_out,
        unknown_tools_on_lines=plan.unknown_lines,
        computed_names_on_lines=plan.computed_lines,
        questions_on_lines=plan.question_lines,
    )


def script_difference(found: ScriptChanges) -> ScriptDifference:
    lines = [ScriptLine(kind=one.kind, before=one.before, after=one.after, text=one.text) for one in found.lines]
    return ScriptDifference(lines=lines, left_out=found.left_out, compared=found.compared)


def _origin(origin: ScriptOrigin | None) -> ScriptMaker | None:
    return ScriptMaker(task_id=origin.task_id, line=origin.line or None) if origin is not None else None
