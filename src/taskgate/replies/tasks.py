"""Tasks: lists, one task, its result, and running scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType, field

from taskgate.core.errors import Executed
from taskgate.core.history.row import CallOutcome
from taskgate.core.tasks.state import TaskState
from taskgate.replies.fields import Time, about
from taskgate.replies.scripts import CallTree


class TaskRow(Struct, frozen=True, kw_only=True):
    """A task in the format of version 0.1."""

    id: Annotated[str, about("id of the task")]
    state: Annotated[TaskState, about("state of the task")]
    tool: Annotated[str, about("name that callers see")]
    name: Annotated[str, about("name of the tool at its server")]
    server: Annotated[str, about("name of the server")]
    principal: Annotated[str, about("principal of the caller")]
    scope: Annotated[str, about("scope of the call")]
    message: Annotated[str | None, about("status message")]
    progress: Annotated[float | None, about("progress so far")]
    progress_total: Annotated[float | None, about("progress at the end")]
    created_at: Annotated[Time, about("time of the call")]
    updated_at: Annotated[Time, about("time of the last change")]
    finished_at: Annotated[Time | None, about("time of the end")]
    ttl_ms: Annotated[int, about("how long it is kept after its creation, in milliseconds")]
    approval_id: Annotated[str | None, about("its approval")]
    executed: Annotated[Executed | None, about("whether the tool ran; null before the end")]
    outcome: Annotated[
        CallOutcome | None,
        about("how it ended; `tool_error` if the tool returned a result with `isError`; null before the end"),
    ]
    rerun_of: Annotated[str | None, about("task that this one repeats")]

    @property
    def shown_state(self) -> str:
        """A tool error is shown as such, not as completed."""
        return "tool_error" if self.outcome is CallOutcome.TOOL_ERROR else self.state.value

    @property
    def share(self) -> int | None:
        """The progress in percent while it is open."""
        if self.progress is None or not self.progress_total or self.state.is_terminal:
            return None
        return round(max(0.0, min(1.0, self.progress / self.progress_total)) * 100)


class OperatorTask(TaskRow, frozen=True, kw_only=True):
    """A task with its conversation."""

    caller: Annotated[str, about("the principal and its conversation")]
    attempts: Annotated[int, about("number of times the call was sent")]
    keep_result_ms: Annotated[int | None, about("how long the result is kept after the end, in milliseconds")]


class TaskList(Struct, frozen=True, kw_only=True):
    """A page of tasks."""

    tasks: Sequence[OperatorTask]
    next: Annotated[str | None, about("value of `after` for the next page; null at the end")]


class Scripts(Struct, frozen=True, kw_only=True):
    """Scripts that have not ended."""

    scripts: Sequence[OperatorTask]


class StoppedScript(OperatorTask, frozen=True, kw_only=True):
    """A script that was stopped."""

    ran: Annotated[str, about("which calls were executed, or may have been, with their number")]


class StoppedScripts(Struct, frozen=True, kw_only=True):
    """The reply to a request to stop scripts."""

    stopped: Sequence[StoppedScript]


class OpenQuestion(Struct, frozen=True, kw_only=True):
    """A question of a task that waits for an answer."""

    key: Annotated[str, about("key of the question")]
    method: Annotated[str, about("method of the question, for example `elicitation/create`")]
    request: Annotated[Any, about("the question as the server sent it")]


class TimelineStep(Struct, frozen=True, kw_only=True):
    """What happened to a task at one time."""

    at: Annotated[Time, about("time")]
    event: Annotated[str, about("what happened")]
    detail: Annotated[str, about("details; may be empty")]


class TaskPhase(Struct, frozen=True, kw_only=True):
    """A part of the time of a task."""

    begin: Annotated[Time, about("begin")] = field(name="from")
    to: Annotated[Time, about("end; now if it has not ended")]
    kind: Annotated[str, about("`waiting` (for a person, the caller or a queue) or `working`")]
    label: Annotated[str, about("what it waited for, or where it ran")]


class TaskDetail(OperatorTask, frozen=True, kw_only=True):
    """One task with its arguments, timeline and questions."""

    trace: Annotated[str | None, about("id of the W3C trace that the call belongs to")]
    trace_url: Annotated[str | None, about("address of the trace by `telemetry.trace_url`; null without either")]
    arguments_digest: Annotated[str, about("digest of the arguments; equal calls have equal ones")]
    arguments: Annotated[Any, about("arguments of the call, redacted")]
    hidden: Annotated[Sequence[str], about("paths of redacted fields")]
    questions: Annotated[Sequence[OpenQuestion], about("open questions")]
    timeline: Sequence[TimelineStep]
    phases: Annotated[Sequence[TaskPhase], about("phases of the task in order, without gaps")]
    rule: Annotated[str | None, about("rule that requires approval; null for other tasks")]
    upstream_task: Annotated[
        str | None, about("id of the task that the server created for the call; null if it created none")
    ]
    parent: Annotated[str | None, about("task of the script that made the call; null for other calls")]
    script_line: Annotated[int | None, about("line of the call in the source of its script")]
    script_calls: Annotated[CallTree | None, about("the calls of a script; null if the task is no script")]
    may_cancel: Annotated[bool, about("whether you may cancel it now")]


class TaskResult(OperatorTask, frozen=True, kw_only=True):
    """A task with its result or error."""

    ended: Annotated[bool, about("whether the task has ended; without `result` and `error` until then")]
    result: Annotated[Any | UnsetType, about("result of the tool")] = UNSET
    error: Annotated[Any | UnsetType, about("JSON-RPC error of the call")] = UNSET


class TaskStatus(TaskRow, frozen=True, kw_only=True):
    """The data of a `task_status` event: a task, and its status in the words of the stateful generation."""

    task_id: str = field(name="taskId")
    status: str
    status_message: str | UnsetType = field(name="statusMessage", default=UNSET)
    timestamp: str
