"""The fields of every reply of the JSON API, as JSON Schemas that routes declare in `answer`.

`/api/v1/openapi.json` and docs/http-api.md are generated from them. Tests compare them with real replies, so a field that is
added to a reply must be added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from taskgate.core.errors import Executed
from taskgate.core.governance.approval import State as ApprovalState
from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.decision import Action
from taskgate.core.governance.script_changes import LineKind
from taskgate.core.governance.script_plan import Meets
from taskgate.core.history.row import CallOutcome, RowKind
from taskgate.core.redaction.difference import ChangeKind
from taskgate.core.scoping.scope import ScopeMode
from taskgate.core.tasks.state import TaskState

Schema = Mapping[str, Any]


def record(description: str = "", /, **fields: Schema) -> Schema:
    """An object with exactly these fields. `optional` marks those that may be missing."""
    required = [name for name, field in fields.items() if not field.get("x-optional")]
    properties = {name: {key: field[key] for key in field if key != "x-optional"} for name, field in fields.items()}
    body = {"description": description} if description else {}
    return {"type": "object", **body, "properties": properties, "required": required, "additionalProperties": False}


def extended(base: Schema, /, **fields: Schema) -> Schema:
    """The fields of `base`, and these."""
    more = record(**fields)
    return {
        **base,
        "properties": {**base["properties"], **more["properties"]},
        "required": [*base["required"], *more["required"]],
    }


def rows(item: Schema, description: str = "") -> Schema:
    return {"type": "array", "items": item, **({"description": description} if description else {})}


def text(description: str) -> Schema:
    return {"type": "string", "description": description}


def one_of(values: type[StrEnum], description: str) -> Schema:
    return {"type": "string", "enum": [value.value for value in values], "description": description}


def time(description: str) -> Schema:
    return {"type": "string", "format": "date-time", "description": description}


def integer(description: str) -> Schema:
    return {"type": "integer", "description": description}


def number(description: str) -> Schema:
    return {"type": "number", "description": description}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def anything(description: str) -> Schema:
    return {"description": description}


def mapping(description: str) -> Schema:
    """An object whose keys are not fixed."""
    return {"type": "object", "description": description}


def nullable(schema: Schema) -> Schema:
    found = {**schema, "type": [schema["type"], "null"]}
    return {**found, "enum": [*schema["enum"], None]} if "enum" in schema else found


def optional(schema: Schema) -> Schema:
    return {**schema, "x-optional": True}


_CHANGES: Final = record(
    "differences between two JSON values",
    left_out=integer("number of further differences that are not listed"),
    list=rows(
        record(
            path=text("place in the value"),
            kind=one_of(ChangeKind, "kind of difference"),
            before=anything("earlier value"),
            after=anything("current value"),
            hidden=flag("whether the values are redacted"),
        )
    ),
)
_SCRIPT_CHANGES: Final = record(
    "lines of the script that differ from the last approved one, with equal lines around them; null if there was none",
    lines=rows(
        record(
            kind=one_of(
                LineKind, "whether the line is in both scripts, only in the approved one or only in the new one"
            ),
            before=nullable(integer("its number in the approved script; null if it is not in it")),
            after=nullable(integer("its number in the new script; null if it is not in it")),
            text=text("the line, with escaped invisible characters"),
        )
    ),
    left_out=integer("number of further lines that are not listed"),
    compared=flag("whether the scripts were compared; not if one has more than 2,000 lines"),
)
_VOTE: Final = record(
    approver=text("name of the person"),
    verdict=one_of(Verdict, "the vote"),
    at=time("time of the vote"),
    reason=text("reason that was given; may be empty"),
    channel=text("where it was given, for example `page`, `api` or the name of a channel"),
)
DEFINITION: Final = record(
    server=text("name of the server"),
    tool=text("name of the tool; `resource:URI` or `skill:URI` for an interface or a skill"),
    kind=text("`tool`, `interface` or `skill`"),
    digest=text("digest of the current definition, for `POST /api/v1/pins/accept`"),
    pinned=nullable(text("digest of the accepted definition; null if there is none")),
    quarantined=flag("whether it is hidden from callers until it is accepted"),
    flags=rows(
        record(kind=text("kind of finding"), where=text("place in the definition"), what=text("what was found")),
        "suspicious content",
    ),
    changes=_CHANGES,
)
ACCEPTED_DEFINITION: Final = record(
    digest=text("digest of the definition"),
    at=time("time at which it was accepted"),
    by=text("person who accepted it; empty if it was pinned on first use"),
    changes=nullable(_CHANGES),
)
DEFINITION_ACCEPTED: Final = record(
    server=text("name of the server"),
    tool=text("name of the tool"),
    digest=text("digest of the accepted definition"),
    accepted_by=text("name of the person"),
)
_LINES: Final = {"type": "array", "items": {"type": "integer"}}
_FROM_SCRIPT: Final = record(
    "the script that made the call; null if no script did",
    task_id=text("task of the script"),
    line=nullable(integer("line of the call in its source; null if unknown")),
)
_PLAN: Final = record(
    "what the script would call under the rules at the time of the request; null if the call runs no script",
    tools=rows(
        record(
            tool=text("name that callers see"),
            meets=one_of(Meets, "what a call of it would meet"),
            lines={**_LINES, "description": "lines that name it, the first 20"},
        ),
        "tools that the script names, up to 100",
    ),
    tools_left_out=integer("number of further tools"),
    unknown_tools_on_lines={**_LINES, "description": "lines that name a tool which the scope does not have"},
    computed_names_on_lines={**_LINES, "description": "lines where the name is computed at run time"},
    questions_on_lines={**_LINES, "description": "lines that ask the caller"},
)
SCRIPT_CALLS: Final = record(
    "the calls of a script; null if the task is no script",
    steps=integer("number of steps that are stored"),
    calls_made=integer("number of all calls, including those of functions of the gateway"),
    calls=rows(
        record(
            number=integer("number of the call in its script"),
            script=text("task of the script that made the call: this one, or an earlier one that it resumes"),
            line=integer("line of the call in the source"),
            tool=text("name that callers see; of a function of the gateway `sleep` or `ask`"),
            task_id=nullable(text("task of the call; null of a function of the gateway and of a refused call")),
            state=text("state of the task, `tool_error`, `refused`, or `waiting` of a function of the gateway"),
            executed=nullable(text("`yes`, `no` or `unknown`; null until it has ended")),
            received=flag("whether the script has received the outcome"),
            message=text("status message; may be empty"),
            created_at=nullable(time("time of the call")),
            finished_at=nullable(time("end of the call")),
            waits_until=nullable(time("end of a `sleep`")),
        ),
        "up to 100 calls, in the order in which they were made: those of the scripts that it resumes come first",
    ),
    next=anything(
        "value of `calls_after` for the next page: a number, or a text in an earlier script; null at the end"
    ),
)

APPROVAL: Final = record(
    id=text("id of the approval"),
    state=one_of(ApprovalState, "state of the approval"),
    tool=text("name that callers see"),
    server=text("name of the server"),
    name=text("name of the tool, resource or prompt at its server"),
    kind=text("`tool`, `resource` or `prompt`"),
    requester=text("principal of the caller"),
    scope=text("scope of the call"),
    workflow=text("name of the workflow"),
    rule=text("rule that holds the call"),
    arguments_digest=text("digest of the exact arguments"),
    definition_digest=text("digest of the tool's definition"),
    approvals_needed=integer("number of approvers who must agree"),
    approvals_given=integer("number who have agreed"),
    asked_at=time("time of the call"),
    expires_at=time("deadline of the decision"),
    decided_at=nullable(time("time of the decision")),
    reason=text("reason of the decision; may be empty"),
    task_id=nullable(text("task of the call; null if it is not a task")),
    plan_summary=nullable(text("what the script would call, in one line; null if the call runs no script")),
    from_script=nullable(_FROM_SCRIPT),
    url=text("address of the approval's page"),
    batchable=flag("whether identical calls may be decided together"),
)
APPROVAL_DETAIL: Final = extended(
    APPROVAL,
    arguments=text("the arguments as indented JSON text, with redacted fields and escaped invisible characters"),
    script=text("the code of a call that runs a script, with escaped invisible characters; otherwise empty"),
    plan=nullable(_PLAN),
    script_calls=nullable(SCRIPT_CALLS),
    hidden=texts("paths of redacted fields"),
    deceptive=texts(
        "characters that are invisible, change the text direction or look like Latin letters, in the arguments and in names"
    ),
    not_validated=text("why the arguments were not validated; empty if they were"),
    changes=nullable(_CHANGES),
    script_changes=nullable(_SCRIPT_CHANGES),
    votes=rows(_VOTE, "votes so far"),
    may_decide=flag("whether you may decide"),
    starts_on_approval=flag("whether the call runs as soon as it is approved"),
    starts_on_yes=flag("deprecated name of `starts_on_approval`"),
    polled_ago_s=nullable(number("seconds since its caller last requested the task")),
    description=text("the tool's description, from its server; may be empty"),
    risks=texts(
        "what a call may do, by the tool's hints: `reads_only`, `writes`, `destructive` or `undeclared`, and `open_world`"
    ),
    grant_minutes=nullable(integer("duration of a grant that the page offers; null if grants are not possible")),
    unaccepted=rows(DEFINITION, "changed definitions of the tool that are not accepted"),
)
GRANT: Final = record(
    id=text("id of the grant"),
    workflow=text("name of the workflow"),
    server=text("name of the server"),
    tool=text("name of the tool at its server"),
    scope=text("scope that it covers"),
    principal=nullable(text("caller that it covers; null for all callers of the scope")),
    exact_arguments=flag("whether it covers only the approved arguments"),
    script_digest=nullable(text("it covers only calls of the script with this digest; null for calls of any origin")),
    granted_by=texts("people who approved"),
    granted_at=time("time of the approval"),
    until=time("end of the grant"),
    approval_id=text("approval that it was given with"),
    revoked_at=nullable(time("time at which it was revoked")),
    revoked_by=nullable(text("person who revoked it")),
)
DECISION: Final = record(
    id=text("id of the approval"),
    message=text("result as a sentence"),
    state=optional(one_of(ApprovalState, "state of the approval")),
    error=optional(text("why the vote did not count")),
    starts=optional(flag("whether the call runs now; false: when its caller next requests the task")),
    grant=optional({**GRANT, "description": "the grant that was requested with the approval"}),
)

TASK: Final = record(
    id=text("id of the task"),
    state=one_of(TaskState, "state of the task"),
    tool=text("name that callers see"),
    name=text("name of the tool at its server"),
    server=text("name of the server"),
    principal=text("principal of the caller"),
    scope=text("scope of the call"),
    message=nullable(text("status message")),
    progress=nullable(number("progress so far")),
    progress_total=nullable(number("progress at the end")),
    created_at=time("time of the call"),
    updated_at=time("time of the last change"),
    finished_at=nullable(time("time of the end")),
    ttl_ms=integer("how long it is kept after its creation, in milliseconds"),
    approval_id=nullable(text("its approval")),
    executed=nullable(one_of(Executed, "whether the tool ran; null before the end")),
    outcome=nullable(
        one_of(
            CallOutcome, "how it ended; `tool_error` if the tool returned a result with `isError`; null before the end"
        )
    ),
    rerun_of=nullable(text("task that this one repeats")),
)
OPERATOR_TASK: Final = extended(
    TASK,
    caller=text("the principal and its conversation"),
    attempts=integer("number of times the call was sent"),
    keep_result_ms=nullable(integer("how long the result is kept after the end, in milliseconds")),
)
TASK_PAGE: Final = record(
    tasks=rows(OPERATOR_TASK), next=nullable(text("value of `after` for the next page; null at the end"))
)
SCRIPTS: Final = record(scripts=rows(OPERATOR_TASK))
STOPPED_SCRIPTS: Final = record(
    stopped=rows(extended(OPERATOR_TASK, ran=text("which calls were executed, or may have been, with their number")))
)
TASK_DETAIL: Final = extended(
    OPERATOR_TASK,
    trace=nullable(text("id of the W3C trace that the call belongs to")),
    trace_url=nullable(text("address of the trace by `telemetry.trace_url`; null without either")),
    arguments_digest=text("digest of the arguments; equal calls have equal ones"),
    arguments=anything("arguments of the call, redacted"),
    hidden=texts("paths of redacted fields"),
    questions=rows(
        record(
            key=text("key of the question"),
            method=text("method of the question, for example `elicitation/create`"),
            request=anything("the question as the server sent it"),
        ),
        "open questions",
    ),
    timeline=rows(record(at=time("time"), event=text("what happened"), detail=text("details; may be empty"))),
    phases=rows(
        record(
            **{"from": time("begin"), "to": time("end; now if it has not ended")},
            kind=text("`waiting` (for a person, the caller or a queue) or `working`"),
            label=text("what it waited for, or where it ran"),
        ),
        "phases of the task in order, without gaps",
    ),
    rule=nullable(text("rule that requires approval; null for other tasks")),
    upstream_task=nullable(text("id of the task that the server created for the call; null if it created none")),
    parent=nullable(text("task of the script that made the call; null for other calls")),
    script_line=nullable(integer("line of the call in the source of its script")),
    script_calls=nullable(SCRIPT_CALLS),
    may_cancel=flag("whether you may cancel it now"),
)
TASK_RESULT: Final = extended(
    OPERATOR_TASK,
    ended=flag("whether the task has ended; without `result` and `error` until then"),
    result=optional(anything("result of the tool")),
    error=optional(anything("JSON-RPC error of the call")),
)
_OUTCOME: Final = one_of(CallOutcome, "how it ended; `tool_error`: a result with `isError`")
HISTORY_ROW: Final = record(
    id=text("id of the task, or of the row if the call was not a task"),
    kind=one_of(RowKind, "kind of row"),
    outcome=_OUTCOME,
    ended_at=nullable(time("time of the end")),
    accepted_at=nullable(time("time of the call; of a gap, its beginning")),
    sent_at=nullable(time("time at which it was last sent to its server")),
    duration_ms=integer("from the call to its end, in milliseconds"),
    caller=text("principal of the caller"),
    tenant=text("tenant of the caller; may be empty"),
    scope=text("scope of the call"),
    server=text("name of the server"),
    tool=text("name of the tool at its server"),
    client=text("name of the client; may be empty"),
    generation=text("`stateful` or `stateless`; may be empty"),
    error_type=text("error type; empty without an error"),
    rule=text("rule that decided it; may be empty"),
    reason=text("why it ended like this; may be empty"),
    executed=text("whether the tool ran: `yes`, `no` or `maybe`"),
    attempts=integer("number of times the call was sent"),
    asked=flag("whether a question was asked during the call"),
    approval_id=text("its approval; may be empty"),
    approved_by=text("approvers, separated by commas; may be empty"),
    size_in=integer("size of the arguments in bytes"),
    size_out=integer("size of the result in bytes"),
    digest=text("digest of the arguments, as in the audit log; may be empty"),
    trace=text("trace id that the caller sent; may be empty"),
    parent=text("task that this one repeats; may be empty"),
    count=integer("number of equal calls that the row represents"),
)
HISTORY_PAGE: Final = record(
    rows=rows(HISTORY_ROW), next=nullable(text("value of `after` for the next page; null at the end"))
)
HISTORY_DETAIL: Final = extended(
    HISTORY_ROW,
    trace_url=nullable(text("address of the trace by `telemetry.trace_url`; null without either")),
    content=anything("redacted arguments and result, where `history.content` keeps them; else null"),
    audit=mapping("query parameters of `/api/v1/audit` that find its audit rows"),
)
_SUMMARY: Final = record(
    calls=integer("number of calls"),
    bad=integer("calls with another outcome than ok"),
    outcomes=mapping("number of calls by outcome"),
    p50_ms=nullable(number("median latency; null if nothing was sent")),
    p99_ms=nullable(number("99th percentile of the latency")),
)
HISTORY_TOTALS: Final = rows(extended(_SUMMARY, name=text("name of the server or caller, or SERVER/TOOL")))
HISTORY_NAMES: Final = texts("names in order, 20 at most")
HISTORY_SERIES: Final = record(
    since=time("start of the first bucket"),
    until=time("end of the last bucket"),
    bucket_ms=integer("length of a bucket in milliseconds"),
    buckets=rows(extended(_SUMMARY, start=time("start of the bucket")), "all buckets of the range, oldest first"),
    total=_SUMMARY,
    latencies=rows(
        record(up_to_ms=number("upper bound of the latency"), calls=integer("number of calls")), "latency histogram"
    ),
)
NOW: Final = record(
    open=rows(OPERATOR_TASK, "open tasks"),
    failed=rows(OPERATOR_TASK, "tasks that failed within the last hour"),
    servers=rows(
        record(
            server=text("name of the server"),
            calls=integer("calls in the last ten minutes"),
            per_second=number("calls per second in the last minute"),
            errors=integer("failed calls"),
            p50_ms=nullable(number("median latency")),
            p99_ms=nullable(number("99th percentile of the latency")),
            counts={"type": "array", "items": {"type": "integer"}, "description": "calls in slices of 20 seconds"},
        ),
        "traffic by server; empty without the permission `see`",
    ),
    has_tasks=flag("whether the store has any task that you may see"),
)
OVERVIEW: Final = record(
    range=text("`hour`, `day` or `week`"),
    seconds=integer("length of the range"),
    total=_SUMMARY,
    before=_SUMMARY,
    waiting=integer("approvals and questions in your inbox"),
    waited=_SUMMARY,
    answered=_SUMMARY,
    open=rows(OPERATOR_TASK, "the newest open tasks"),
    open_count=integer("number of open tasks, counted up to 100"),
    more_open=flag("whether there are more than that"),
    running=integer("how many of those are running"),
    servers_down=texts("servers that are not connected"),
    attention=rows(
        record(
            kind=text("`approval`, `question`, `server`, `definition`, `budget` or `errors`"),
            text=text("what it is about"),
            address=text("path of its page in the console"),
            since=nullable(time("since when")),
        ),
        "what needs attention, the most urgent first",
    ),
    servers=rows(extended(_SUMMARY, name=text("name of the server")), "calls by server, most calls first"),
    has_calls=flag("whether there was any call that you may see"),
)
FOUND: Final = rows(
    record(
        kind=text("`task`, `server`, `caller`, `tool` or `page`"),
        name=text("the name that contains the text"),
        detail=text("more about it; may be empty"),
        address=text("path of its page in the console"),
    )
)
CALL_RESULT: Final = record(
    result=optional(anything("result of the call, or its task handle")),
    error=optional(anything("JSON-RPC error of the call")),
    task_id=nullable(text("task that the call became; null if it did not")),
)
TOOLS: Final = record(
    scope=text("name of the scope"),
    tools={"type": "array", "items": {"type": "object"}, "description": "tools as in `tools/list`"},
)

QUESTION: Final = record(
    kind=text("`elicitation`, `sampling` or `roots`"),
    caller=text("principal that it is for"),
    message=text("message of the question; may be empty"),
    may_answer=flag("whether you may answer"),
    request_id=text("id of the question"),
    server=text("name of the server"),
    timestamp=time("time of the question"),
    expires_at=time("deadline of the answer"),
    params=anything("the question as the server sent it"),
    task_id=optional(text("task that it belongs to, if known")),
    undecided=optional(flag("true if the call that caused it is not known")),
    page=optional(text("address of its page for people")),
    secret_fields=optional(texts("fields that seem to ask for a secret")),
    warning=optional(text("warning for the person who answers")),
)
QUESTION_ANSWERED: Final = record(id=text("id of the question"), message=text("result as a sentence"))
INBOX: Final = record(approvals=rows(APPROVAL, "open approvals"), questions=rows(QUESTION, "open questions"))

_ACCOUNT: Final = record(
    principal=nullable(text("owner; null for the account that all callers share")),
    state=text("`connected` or `ended`"),
    issuer=text("authorization server"),
    scope=nullable(text("OAuth scopes")),
    renews=flag("whether the login is renewed by itself"),
    expires_at=nullable(integer("end of the access token, in seconds since 1970")),
)
ACCOUNTS: Final = record(server=text("name of the server"), accounts=rows(_ACCOUNT))
LINK: Final = record(url=text("address to open in a browser"))
DISCONNECTED: Final = record(disconnected=flag("false if there was no such account"))
SERVER: Final = record(
    name=text("name of the server"),
    transport=text("`stdio` or `http`"),
    state=text("state of the connection"),
    generations=texts("protocol generations of the server, as far as known"),
    reconnect_attempt=integer("number of failed attempts since the last connection"),
    next_retry_ms=nullable(integer("time until the next attempt, in milliseconds")),
    last_error=nullable(text("last error")),
    stderr=texts("last lines of stderr"),
    drained=flag("whether it was removed from every scope"),
    tool_count=nullable(integer("number of tools; null while the server has not returned its list")),
    calls=integer("recent calls that the percentiles are from"),
    errors=integer("how many of those failed"),
    p50_ms=nullable(number("median latency")),
    p99_ms=nullable(number("99th percentile of the latency")),
)
SERVER_DETAIL: Final = extended(
    SERVER,
    lists=record(
        "state of its lists",
        listed=flag("whether it has been listed"),
        problem=optional(text("why the last attempt failed")),
        generation=optional(nullable(text("generation in which it was listed"))),
        tools=optional(integer("number of tools")),
        prompts=optional(integer("number of prompts")),
        resources=optional(integer("number of resources")),
        resourceTemplates=optional(integer("number of resource templates")),
        skills=optional(integer("number of skills")),
        age_s=optional(integer("age of the lists in seconds")),
        failed=optional(mapping("error by list that could not be fetched, for example `prompts/list`")),
    ),
    budgets=record(
        timeout_ms=integer("timeout of a call"),
        max_concurrency=nullable(integer("largest number of concurrent calls")),
        max_tool_output_bytes=nullable(integer("largest output of a tool")),
        running=nullable(integer("calls that hold a slot")),
        waiting=nullable(integer("calls that wait for a slot")),
    ),
    tools=rows(
        record(
            name=text("name at the server"),
            digest=text("digest of the definition"),
            changed=flag("whether the definition differs from its pin"),
            quarantined=flag("whether it is hidden until accepted"),
        )
    ),
    accounts=nullable(rows(_ACCOUNT, "connected accounts; null if the server has none")),
)
SERVER_ACTION: Final = record(name=text("name of the server"), done=text("`reconnected`, `drained` or `enabled`"))

SCOPE: Final = record(
    scope=text("name of the scope"),
    address=text("path of its endpoint"),
    mode=one_of(ScopeMode, "what it lists"),
    names=text("how names are shown"),
    servers=texts("servers in it"),
    excluded=mapping("reason by excluded server"),
    problems=texts("problems of its configuration"),
    temporary=flag("whether it was created at run time"),
    label=optional(text("of a temporary scope: label")),
    created_by=optional(text("of a temporary scope: person or program that created it")),
    created_at=optional(time("of a temporary scope: time of its creation")),
    expires_at=optional(time("of a temporary scope: its end")),
    config=optional(mapping("of a temporary scope: configuration that it was created from")),
)
SCOPES: Final = record(
    scopes=rows(
        extended(
            SCOPE,
            tool_count=integer("number of tools"),
            left_out_count=integer("number of excluded tools and servers"),
            list_bytes=integer("size of the tool list in bytes"),
            list_tokens=integer("estimated size of the tool list in tokens of a model"),
        )
    )
)
SCOPE_CREATED: Final = extended(
    SCOPE, url=text("address for MCP clients"), token=text("bearer token of the scope; it is not shown again")
)
SCOPE_ENDED: Final = record(scope=text("name of the scope"), ended_by=text("name of the person"))
SCOPE_TOOLS: Final = record(
    scope=text("name of the scope"),
    address=text("path of its endpoint"),
    mode=one_of(ScopeMode, "what it lists"),
    servers=texts("servers in it"),
    tools=rows(
        record(name=text("name that callers see"), server=text("name of the server"), rule=text("rule that applies"))
    ),
    bytes=integer("size of the tool list in bytes"),
    tokens=integer("estimated size in tokens of a model"),
    script_stubs=nullable(
        record(
            "the tools as `describe_tools` returns them for scripts; null if the scope has no scripts",
            tools=integer("number of tools that scripts may call"),
            bytes=integer("size of their signatures in bytes"),
            tokens=integer("estimated size in tokens of a model"),
        )
    ),
    left_out=rows(record(what=text("`SERVER:TOOL` or a server"), why=text("reason")), "what is excluded"),
)

RULES: Final = record(
    recording=flag("whether calls are recorded"),
    rules=rows(
        record(
            rule=text("label of the rule in decisions"),
            match=text("pattern"),
            server=text("server that it is limited to; may be empty"),
            **{"from": text("`script` if it is limited to calls that scripts make, otherwise empty")},
            action=one_of(Action, "action of the rule"),
            workflow=text("workflow of `approve`; may be empty"),
            policy_id=text("policy of `policy`; may be empty"),
            reason=text("reason in the configuration; may be empty"),
            calls=integer("recent recorded calls that it decided"),
        )
    ),
)
SUGGESTIONS: Final = rows(
    record(
        ask=text("`less` or `more` often"),
        server=text("name of the server"),
        tool=text("name of the tool"),
        why=text("reason"),
        rule=text("suggested rule, as YAML"),
    )
)
RECORDED_CALLS: Final = record(
    calls=rows(
        record(
            at_ms=integer("time, in milliseconds since 1970"),
            principal=optional(text("principal of the caller")),
            roles=optional(texts("roles of the caller")),
            scope=optional(text("scope")),
            server=optional(text("name of the server")),
            name=optional(text("name of the tool, resource or prompt")),
            kind=optional(text("`tool` (default), `resource` or `prompt`")),
            before=optional(text("decision at that time; default `forward`")),
            rule=optional(text("rule that decided")),
            arguments=optional(text("arguments as JSON text, redacted")),
            hidden=optional(texts("paths of redacted fields")),
            unread=optional(text("why there are no arguments")),
            ambiguous=optional(text("why the arguments cannot be evaluated")),
            listed=optional(flag("false if its server had not listed it")),
            asked_servers=optional(flag("true if its session had requested this server")),
            temporary=optional(flag("true if its scope was temporary")),
            count=optional(integer("number of calls, if only their number was recorded")),
            from_script=optional(flag("true if a script made it")),
        ),
        "fields with their default value are omitted",
    ),
    next=nullable(integer("value of `after` for the next page; null at the end")),
    recording=flag("whether calls are recorded"),
)
REHEARSAL: Final = record(
    calls=integer("number of calls"),
    changed=integer("number that would be decided differently"),
    undecided=integer("number that cannot be decided from the recorded data"),
    cannot_tell=integer("deprecated name of `undecided`"),
    outcomes=rows(
        record(
            before=text("decision"),
            after=text("new decision, `cannot tell` if undecided"),
            calls=integer("number of calls"),
        )
    ),
    tools=rows(
        record(
            server=text("name of the server"),
            tool=text("name of the tool"),
            before=text("decision"),
            after=text("new decision"),
            why=text("reason"),
            calls=integer("number of calls"),
        )
    ),
    examples=rows(
        record(
            at_ms=integer("time, in milliseconds since 1970"),
            caller=text("principal"),
            scope=text("scope"),
            server=text("name of the server"),
            tool=text("name of the tool"),
            arguments=nullable(text("arguments as JSON text, redacted")),
            before=text("decision"),
            rule_before=text("rule that decided"),
            after=text("new decision"),
            rule_after=text("rule that would decide"),
            why=text("reason"),
        )
    ),
)
SYSTEM: Final = record(
    version=text("version of Taskgate"),
    python=text("version of Python"),
    profile=text("`development` or `production`"),
    plan_revision=integer("number of the configuration in force; each reload increases it"),
    policy_revision=text("digest of the rules in force"),
    store=record(
        owner=text("name of this gateway in the store"),
        problem=nullable(text("why the store is unavailable")),
        trouble=nullable(text("deprecated name of `problem`")),
    ),
    replicas=rows(
        record(
            owner=text("name of the gateway"),
            address=text("its address"),
            version=text("its version"),
            started_ms=integer("time of its start, in milliseconds since 1970"),
            seen_ms=integer("last renewal of its lease, in milliseconds since 1970"),
        ),
        "gateways on the same store",
    ),
    limits=rows(record(limit=text("key in `limits`"), in_use=integer("current number"), of=integer("limit"))),
    configuration=record(path=nullable(text("configuration file")), problems=texts("warnings")),
)
RELOADED: Final = record(reloaded=flag("always true; a configuration with errors is status 409"))
AUDIT_PAGE: Final = record(
    rows=rows(
        record(
            number=integer("position in the hash chain"),
            hash=text("hash of the row"),
            chain=optional(text("with a shared store, its chain: one for each start of a gateway")),
            at_ms=integer("time, in milliseconds since 1970"),
            event=text("name of the event"),
            principal=optional(text("principal of the caller or person")),
            scope=optional(text("scope")),
            server=optional(text("name of the server")),
            name=optional(text("name of the tool, resource or prompt")),
            kind=optional(text("kind of the subject, for example `tool`")),
            arguments_digest=optional(text("digest of the arguments")),
            arguments=optional(anything("arguments, redacted")),
            hidden=optional(texts("paths of redacted fields")),
            rule=optional(text("rule that decided")),
            decision=optional(text("decision")),
            policy_revision=optional(text("revision of the rules")),
            approval_id=optional(text("approval")),
            approvers=optional(texts("people who decided")),
            reason=optional(text("reason")),
            task_id=optional(text("task")),
            outcome=optional(text("outcome of the call")),
            executed=optional(text("whether the tool ran: `no`, `maybe` or `yes`")),
            correlation_id=optional(text("id that relates rows of one request")),
        ),
        "empty fields are omitted",
    ),
    next=anything("value of `before` for the next page: a number, with a shared store a text; null at the end"),
)
AUDIT_CHAIN: Final = record(
    rows=integer("number of rows"),
    head=text("hash of the last row"),
    whole=flag("whether the last rows verify"),
    verified=integer("number of rows that were verified"),
    problem=text("what does not verify; empty if `whole`"),
)
AUDIT_EXPORT: Final = text("one row per line, as JSON or CEF (`format`)")
USAGE: Final = rows(
    record(
        day=text("day; empty if not grouped by it, as the next four"),
        principal=text("principal"),
        tenant=text("tenant"),
        server=text("server"),
        tool=text("tool"),
        calls=integer("calls that reached a server"),
        errors=integer("failed calls"),
        seconds=number("total duration"),
        bytes_in=integer("bytes of arguments"),
        bytes_out=integer("bytes of results"),
        cost=number("cost of models that answered sampling requests"),
    )
)
WATERFALL: Final = rows(
    record(
        id=integer("id of the request or server call"),
        parent=nullable(integer("request that caused the server call; null for a request")),
        kind=text("`request`, `upstream` (a call to a server) or `task` (the run of a task)"),
        method=text("MCP method"),
        name=text("tool, resource or prompt"),
        server=text("server; may be empty"),
        caller=text("principal of the caller"),
        start_ms=number("start, in milliseconds since 1970"),
        end_ms=nullable(number("end; null while it runs")),
        state=text("`running`, `ok` or how it ended"),
        task=nullable(text("task that the request became, or whose run this is")),
        script=nullable(text("task of the script that made the call")),
        line=nullable(integer("line of the call in the source of its script")),
    )
)
TOKENS: Final = record(
    tokens=rows(
        record(
            id=text("id of the token"),
            principal=text("principal"),
            roles=texts("roles"),
            expires_at=nullable(time("end")),
            revoked_at=nullable(time("time at which it was revoked")),
            revoked_by=nullable(text("person who revoked it")),
            reason=nullable(text("reason of the revocation")),
        )
    )
)
TOKENS_REVOKED: Final = record(revoked=texts("principals of the revoked tokens"), by=text("name of the person"))
DATA_PAGE: Final = record(
    rows=rows(mapping("`kind`, and the fields of that kind of data")),
    next=nullable(text("value of `after` for the next page; null at the end")),
)
DATA_ERASED: Final = record(
    principal=text("name of the principal"),
    erased=record(
        tasks=integer("number of tasks"),
        approvals=integer("number of approvals"),
        grants=integer("number of grants"),
        events=integer("number of events"),
        recorded_calls=integer("number of recorded calls"),
        history=integer("number of rows of history"),
        usage=integer("number of usage rows"),
        identity_records=integer("number of logins and roles"),
        open_questions=integer("number of questions"),
        sessions=integer("number of sessions"),
    ),
    accounts=texts("servers whose account was disconnected"),
)
CHANGE_EVENTS: Final = text("events `change` with `{topics}`; `ended` with `{error_type, message}` ends the stream")
TASK_EVENTS: Final = text(
    "events `task_status` with the fields of a task and `taskId`, `status`, `statusMessage`, `timestamp`"
)
