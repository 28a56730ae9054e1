"""Held calls, decisions about them, standing grants, and the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from taskgate.core.governance.approval import State, Verdict
from taskgate.replies.definitions import ChangedDefinition
from taskgate.replies.differences import ValueChanges
from taskgate.replies.fields import Time, about
from taskgate.replies.questions import QuestionRow
from taskgate.replies.scripts import CallTree, PlanOfScript, ScriptDifference, ScriptMaker


class VoteRow(Struct, frozen=True, kw_only=True):
    """The vote of one person."""

    approver: Annotated[str, about("name of the person")]
    verdict: Annotated[Verdict, about("the vote")]
    at: Annotated[Time, about("time of the vote")]
    reason: Annotated[str, about("reason that was given; may be empty")]
    channel: Annotated[str, about("where it was given, for example `page`, `api` or the name of a channel")]


class ApprovalRow(Struct, frozen=True, kw_only=True):
    """A held call in a list. Arguments are only in the detail, where redacted fields are marked."""

    id: Annotated[str, about("id of the approval")]
    state: Annotated[State, about("state of the approval")]
    tool: Annotated[str, about("name that callers see")]
    server: Annotated[str, about("name of the server")]
    name: Annotated[str, about("name of the tool, resource or prompt at its server")]
    kind: Annotated[str, about("`tool`, `resource` or `prompt`")]
    requester: Annotated[str, about("principal of the caller")]
    scope: Annotated[str, about("scope of the call")]
    workflow: Annotated[str, about("name of the workflow")]
    rule: Annotated[str, about("rule that holds the call")]
    arguments_digest: Annotated[str, about("digest of the exact arguments")]
    definition_digest: Annotated[str, about("digest of the tool's definition")]
    approvals_needed: Annotated[int, about("number of approvers who must agree")]
    approvals_given: Annotated[int, about("number who have agreed")]
    asked_at: Annotated[Time, about("time of the call")]
    expires_at: Annotated[Time, about("deadline of the decision")]
    decided_at: Annotated[Time | None, about("time of the decision")]
    reason: Annotated[str, about("reason of the decision; may be empty")]
    task_id: Annotated[str | None, about("task of the call; null if it is not a task")]
    plan_summary: Annotated[
        str | None, about("what the script would call, in one line; null if the call runs no script")
    ] = None
    from_script: Annotated[ScriptMaker | None, about("the script that made the call; null if no script did")] = None
    url: Annotated[str, about("address of the approval's page")]
    batchable: Annotated[bool, about("whether identical calls may be decided together")]


class ApprovalDetail(ApprovalRow, frozen=True, kw_only=True):
    """A held call with everything that an approver must see."""

    arguments: Annotated[
        str,
        about("the arguments as indented JSON text, with redacted fields and escaped invisible characters"),
    ]
    script: Annotated[
        str,
        about("the code of a call that runs a script, with escaped invisible characters; otherwise empty"),
    ] = ""
    plan: Annotated[
        PlanOfScript | None,
        about("what the script would call under the rules at the time of the request; null if the call runs no script"),
    ] = None
    script_calls: Annotated[CallTree | None, about("the calls of a script; null if the task is no script")] = None
    hidden: Annotated[Sequence[str], about("paths of redacted fields")]
    deceptive: Annotated[
        Sequence[str],
        about(
            "characters that are invisible, change the text direction or look like Latin letters, in the arguments and in names"
        ),
    ]
    not_validated: Annotated[str, about("why the arguments were not validated; empty if they were")] = ""
    changes: Annotated[ValueChanges | None, about("differences between two JSON values")]
    script_changes: Annotated[
        ScriptDifference | None,
        about(
            "lines of the script that differ from the last approved one, with equal lines around them; null if there was none"
        ),
    ]
    votes: Annotated[Sequence[VoteRow], about("votes so far")]
    may_decide: Annotated[bool, about("whether you may decide")]
    starts_on_approval: Annotated[bool, about("whether the call runs as soon as it is approved")]
    starts_on_yes: Annotated[bool, about("deprecated name of `starts_on_approval`")]
    polled_ago_s: Annotated[float | None, about("seconds since its caller last requested the task")]
    description: Annotated[str, about("the tool's description, from its server; may be empty")]
    risks: Annotated[
        Sequence[str],
        about(
            "what a call may do, by the tool's hints: `reads_only`, `writes`, `destructive` or `undeclared`, and `open_world`"
        ),
    ]
    grant_minutes: Annotated[
        int | None, about("duration of a grant that the page offers; null if grants are not possible")
    ]
    unaccepted: Annotated[
        Sequence[ChangedDefinition], about("changed definitions of the tool that are not accepted")
    ] = ()


class GrantRow(Struct, frozen=True, kw_only=True):
    """A standing grant."""

    id: Annotated[str, about("id of the grant")]
    workflow: Annotated[str, about("name of the workflow")]
    server: Annotated[str, about("name of the server")]
    tool: Annotated[str, about("name of the tool at its server")]
    scope: Annotated[str, about("scope that it covers")]
    principal: Annotated[str | None, about("caller that it covers; null for all callers of the scope")]
    exact_arguments: Annotated[bool, about("whether it covers only the approved arguments")]
    script_digest: Annotated[
        str | None,
        about("it covers only calls of the script with this digest; null for calls of any origin"),
    ] = None
    granted_by: Annotated[Sequence[str], about("people who approved")]
    granted_at: Annotated[Time, about("time of the approval")]
    until: Annotated[Time, about("end of the grant")]
    approval_id: Annotated[str, about("approval that it was given with")]
    revoked_at: Annotated[Time | None, about("time at which it was revoked")]
    revoked_by: Annotated[str | None, about("person who revoked it")]


class Decision(Struct, frozen=True, kw_only=True):
    """The reply to a vote."""

    id: Annotated[str, about("id of the approval")]
    message: Annotated[str, about("result as a sentence")]
    state: Annotated[State | UnsetType, about("state of the approval")] = UNSET
    error: Annotated[str | UnsetType, about("why the vote did not count")] = UNSET
    starts: Annotated[
        bool | UnsetType, about("whether the call runs now; false: when its caller next requests the task")
    ] = UNSET
    grant: Annotated[GrantRow | UnsetType, about("the grant that was requested with the approval")] = UNSET


class InboxContent(Struct, frozen=True, kw_only=True):
    """What waits for a person."""

    approvals: Annotated[Sequence[ApprovalRow], about("open approvals")]
    questions: Annotated[Sequence[QuestionRow], about("open questions")]
