"""The events of a task, and the function that applies one: `apply(task, event, now)` returns the next value or a
refusal.

An event has only the data that it adds; the time comes from the store. Stores call `apply` inside the transaction that
writes the result, so the table in `state` holds for every store. A refusal is a value and not an exception, because a
late response to a cancelled task is a normal case.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from taskgate.core.errors import Executed
from taskgate.core.tasks.progress import with_progress
from taskgate.core.tasks.state import MOVES, TaskState, TransitionKind
from taskgate.core.tasks.task import (
    AWAITING_APPROVAL,
    Attempt,
    AttemptState,
    Outcome,
    OutcomeKind,
    ProgressStep,
    Task,
    UpstreamHandle,
)


class ApprovalRequested(msgspec.Struct, frozen=True):
    approval_id: str
    deadline_ms: int
    message: str = AWAITING_APPROVAL


class ApprovalGranted(msgspec.Struct, frozen=True):
    start_by_ms: int
    message: str = "Approved"


class ApprovalDenied(msgspec.Struct, frozen=True):
    error: bytes
    message: str


class ApprovalExpired(msgspec.Struct, frozen=True):
    error: bytes
    message: str = "The approval expired; the tool was not run"


class RunRefused(msgspec.Struct, frozen=True):
    """A rule, the policy or a changed fact forbids the run."""

    error: bytes
    message: str


class RoundAnswered(msgspec.Struct, frozen=True):
    """The server has answered the last round with questions of which none was asked. `state`: what a stateless server returned."""

    state: bytes | None


class Dispatched(msgspec.Struct, frozen=True):
    """The intent to send, stored before the first byte is sent.

    `answered`: the end of the round before, if it is not stored yet. Stored on its own it would look like a call of which
    nothing is in flight, and after a crash the first round would be sent again.
    """

    fence: int
    byte_hash: str
    upstream: str
    message: str | None = None
    answered: RoundAnswered | None = None


class ScriptStarted(msgspec.Struct, frozen=True):
    """The gateway begins to run a script. Nothing is sent for it: its calls are tasks of their own."""


class AttemptVoided(msgspec.Struct, frozen=True):
    """The last attempt is proven not to have been executed, so another attempt is safe for every class. `why` is the type of
    the error."""

    why: str = ""


class AttemptLost(msgspec.Struct, frozen=True):
    """The last attempt failed and may have been executed, but the tool is safe to repeat. Recorded for the timeline."""

    why: str


class UpstreamTaskKnown(msgspec.Struct, frozen=True):
    """The server created a task for the call; None if the server no longer has that task."""

    handle: UpstreamHandle | None


class Noted(msgspec.Struct, frozen=True):
    """Progress or a status text. It changes nothing else and may be lost in a crash."""

    message: str | None = None
    progress: float | None = None
    total: float | None = None


class InputRequested(msgspec.Struct, frozen=True):
    """Questions were received. `ends_round`: they are the response to what was sent, and their answers are sent as
    another round.
    """

    keys: tuple[str, ...]
    message: str | None = None
    request_state: bytes | None = None
    ends_round: bool = False


class InputSettled(msgspec.Struct, frozen=True):
    """Questions were answered, declined, expired or withdrawn."""

    keys: tuple[str, ...]
    message: str | None = None


class ResultReceived(msgspec.Struct, frozen=True):
    body: bytes
    is_error: bool = False
    message: str | None = None


class ErrorReceived(msgspec.Struct, frozen=True):
    """A JSON-RPC error of the server, or an error of the gateway with what is known about the effect."""

    error: bytes
    message: str
    executed: Executed


class ContactLost(msgspec.Struct, frozen=True):
    error: bytes
    message: str


class Cancelled(msgspec.Struct, frozen=True):
    reason: str | None = None
    error: bytes | None = None


TransitionEvent = (
    ApprovalRequested
    | ApprovalGranted
    | ApprovalDenied
    | ApprovalExpired
    | RunRefused
    | Dispatched
    | ScriptStarted
    | AttemptVoided
    | AttemptLost
    | UpstreamTaskKnown
    | Noted
    | InputRequested
    | InputSettled
    | ResultReceived
    | ErrorReceived
    | ContactLost
    | Cancelled
)

_KINDS: dict[type, TransitionKind] = {
    ApprovalRequested: TransitionKind.APPROVAL_REQUESTED,
    ApprovalGranted: TransitionKind.APPROVAL_GRANTED,
    ApprovalDenied: TransitionKind.APPROVAL_DENIED,
    ApprovalExpired: TransitionKind.APPROVAL_EXPIRED,
    RunRefused: TransitionKind.REFUSED,
    Dispatched: TransitionKind.DISPATCHED,
    ScriptStarted: TransitionKind.SCRIPT_STARTED,
    AttemptVoided: TransitionKind.ATTEMPT_VOIDED,
    AttemptLost: TransitionKind.ATTEMPT_LOST,
    UpstreamTaskKnown: TransitionKind.UPSTREAM_TASK_KNOWN,
    Noted: TransitionKind.NOTED,
    InputRequested: TransitionKind.INPUT_REQUESTED,
    ResultReceived: TransitionKind.RESULT_RECEIVED,
    ErrorReceived: TransitionKind.ERROR_RECEIVED,
    ContactLost: TransitionKind.CONTACT_LOST,
    Cancelled: TransitionKind.CANCELLED,
}


def kind_of(task: Task, event: TransitionEvent) -> TransitionKind:
    """Return the kind of the event, which may depend on the task.

    Settling questions is partial while other questions are open. A lost connection makes the outcome unknown only for a
    call that is in flight and may not be repeated; otherwise it is an ordinary failure.
    """
    if isinstance(event, InputSettled):
        left = set(task.question_keys) - set(event.keys)
        return TransitionKind.INPUT_PARTLY_SETTLED if left else TransitionKind.INPUT_SETTLED
    if isinstance(event, ContactLost) and (task.tool_class.may_repeat or not task.may_have_been_sent):
        return TransitionKind.ERROR_RECEIVED
    return _KINDS[type(event)]


MAX_ATTEMPTS: Final = 3


class AlreadyOver(msgspec.Struct, frozen=True):
    """The task is in a final state."""

    state: TaskState


class NotPossible(msgspec.Struct, frozen=True):
    """The table has no such transition."""

    state: TaskState
    kind: TransitionKind


class MayNotRepeat(msgspec.Struct, frozen=True):
    """Sending again could run the tool twice, or the limit on attempts is reached."""

    attempts: int


Refusal = AlreadyOver | NotPossible | MayNotRepeat


def apply(task: Task, event: TransitionEvent, now_ms: int) -> Task | Refusal:
    """Return the task after `event`, or the reason why the event is not possible."""
    if task.state.is_terminal:
        return AlreadyOver(task.state)
    kind = kind_of(task, event)
    after = MOVES[task.state].get(kind)
    if after is None:
        return NotPossible(task.state, kind)
    if isinstance(event, Dispatched) and event.answered is not None:
        state = event.answered.state if event.answered.state is not None else task.request_state
        task = _round_ended(replace(task, asked=True, request_state=state), now_ms)
    if isinstance(event, Dispatched) and not may_send(task):
        return MayNotRepeat(task.attempts)
    moved = replace(_with_details(task, event, now_ms), state=after, updated_ms=now_ms, revision=task.revision + 1)
    return _finished(moved, now_ms) if after.is_terminal else moved


def may_send(task: Task) -> bool:
    """Whether one more attempt is safe: never while a `ONCE` call may have been executed without a response, and at
    most three times for other classes. After a server has responded with questions, the next round may be sent.
    """
    if task.upstream_handle is not None:
        return not task.may_have_been_sent
    if task.times_unanswered == 0:
        return True
    return task.tool_class.may_repeat and task.times_unanswered < MAX_ATTEMPTS


def _finished(task: Task, now_ms: int) -> Task:
    attempt = task.last_attempt
    if attempt is not None and attempt.state is AttemptState.DISPATCHING:
        state = AttemptState.ANSWERED if task.executed is Executed.YES else attempt.state
        attempt = replace(attempt, state=state, ended_ms=now_ms if attempt.ended_ms is None else attempt.ended_ms)
    return replace(task, finished_ms=now_ms, last_attempt=attempt, question_keys=())


def _with_details(task: Task, event: TransitionEvent, now_ms: int) -> Task:
    """Apply the data of the event, apart from the state. Without a new text the old text stays."""
    match event:
        case ApprovalRequested(approval_id, deadline_ms, message):
            return replace(task, approval_id=approval_id, approval_deadline_ms=deadline_ms, status_message=message)
        case ApprovalGranted(start_by_ms, message):
            return replace(task, approval_deadline_ms=start_by_ms, status_message=message)
        case Dispatched():
            return _sent(task, event, now_ms)
        case ScriptStarted():
            return replace(task, status_message=None)
        case AttemptVoided() | AttemptLost():
            return _attempt_failed(task, event, now_ms)
        case UpstreamTaskKnown(handle):
            return replace(task, upstream_handle=handle)
        case Noted():
            return _noted(task, event, now_ms)
        case InputRequested() | InputSettled():
            return _questions_changed(task, event, now_ms)
        case _:
            return _ended(task, event)


def _noted(task: Task, event: Noted, now_ms: int) -> Task:
    message = event.message if event.message is not None else task.status_message
    total = event.total if event.total is not None else task.progress_total
    if event.progress is None:
        return replace(task, status_message=message, progress_total=total)
    step = ProgressStep(now_ms, event.progress, total, event.message or "")
    steps = with_progress(task.progress_steps, step)
    return replace(task, status_message=message, progress=event.progress, progress_total=total, progress_steps=steps)


Ending: TypeAlias = (
    ApprovalDenied | ApprovalExpired | RunRefused | ResultReceived | ErrorReceived | ContactLost | Cancelled
)


def _ended(task: Task, event: Ending) -> Task:
    match event:
        case ApprovalDenied(error, message) | ApprovalExpired(error, message) | RunRefused(error, message):
            return _ended_by_error(task, error, message, Executed.NO)
        case ResultReceived(body, is_error, message):
            outcome = Outcome(OutcomeKind.RESULT, body, is_error=is_error, size=len(body))
            return replace(task, outcome=outcome, status_message=message, executed=Executed.YES)
        case ErrorReceived(error, message, executed):
            return _ended_by_error(task, error, message, executed)
        case ContactLost(error, message):
            executed = Executed.MAYBE if task.may_have_been_sent else Executed.NO
            return _ended_by_error(task, error, message, executed)
        case Cancelled():
            return _cancelled(task, event)
        case _:
            assert_never(event)


def _ended_by_error(task: Task, error: bytes, message: str, executed: Executed) -> Task:
    if executed is Executed.NO and task.may_have_been_sent:
        executed = Executed.MAYBE
    outcome = Outcome(OutcomeKind.ERROR, error, is_error=True, size=len(error))
    return replace(task, outcome=outcome, status_message=message, executed=executed)


def _sent(task: Task, event: Dispatched, now_ms: int) -> Task:
    attempt = Attempt(
        number=task.attempts + 1,
        fence=event.fence,
        byte_hash=event.byte_hash,
        upstream=event.upstream,
        sent_at_ms=now_ms,
    )
    # A further attempt does not extend the deadline, which counts from the first one.
    deadline = (
        task.execution_deadline_ms if task.execution_deadline_ms is not None else now_ms + task.execution_budget_ms
    )
    return replace(
        task,
        last_attempt=attempt,
        sends=task.times_sent + 1,
        unanswered_sends=task.times_unanswered + 1,
        execution_deadline_ms=deadline,
        status_message=event.message,
    )


def _attempt_failed(task: Task, event: AttemptVoided | AttemptLost, now_ms: int) -> Task:
    """A void attempt does not count. If no attempt counts any more, the execution deadline is unset."""
    attempt = task.last_attempt
    if attempt is None or attempt.state is not AttemptState.DISPATCHING:
        return task
    if isinstance(event, AttemptLost):
        return replace(task, last_attempt=replace(attempt, ended_ms=now_ms, why=event.why))
    sends = max(0, task.times_sent - 1)
    return replace(
        task,
        last_attempt=replace(attempt, state=AttemptState.VOID, ended_ms=now_ms, why=event.why),
        sends=sends,
        unanswered_sends=max(0, task.times_unanswered - 1),
        execution_deadline_ms=task.execution_deadline_ms if sends else None,
    )


def _questions_changed(task: Task, event: InputRequested | InputSettled, now_ms: int) -> Task:
    message = event.message if event.message is not None else task.status_message
    if isinstance(event, InputRequested):
        fresh = tuple(key for key in dict.fromkeys(event.keys) if key not in task.question_keys)
        state = event.request_state if event.request_state is not None else task.request_state
        keys = task.question_keys + fresh
        asked = replace(task, asked=True, question_keys=keys, status_message=message, request_state=state)
        return _round_ended(asked, now_ms) if event.ends_round else asked
    left = tuple(key for key in task.question_keys if key not in event.keys)
    if not left and event.message is None:
        # The text was that of the question, which is settled.
        message = None
    return replace(task, question_keys=left, status_message=message)


def _round_ended(task: Task, now_ms: int) -> Task:
    attempt = task.last_attempt
    if attempt is not None and attempt.state is AttemptState.DISPATCHING:
        attempt = replace(attempt, state=AttemptState.ANSWERED, ended_ms=now_ms)
    return replace(task, last_attempt=attempt, sends=task.times_sent, unanswered_sends=0)


_CANCELLED: Final = {
    (
        True,
        True,
    ): '. Calls that the script had made may have taken effect. To continue it without repeating them: resume_of="{task}".',
    (False, True): ". The call had been sent and may have taken effect.",
    (False, False): ". The tool was not run.",
}


def _cancelled(task: Task, event: Cancelled) -> Task:
    # The calls of a script are tasks of their own: those that were not sent are cancelled after it, by its owner.
    began = task.script and task.state in (TaskState.RUNNING, TaskState.INPUT_REQUIRED)
    sent = task.may_have_been_sent or began
    message = f"Cancelled: {event.reason}" if event.reason else "Cancelled"
    message += _CANCELLED[began, sent].format(task=task.id)
    outcome = None
    if event.error is not None:
        outcome = Outcome(OutcomeKind.ERROR, event.error, is_error=True, size=len(event.error))
    return replace(
        task,
        outcome=outcome,
        status_message=message,
        executed=Executed.MAYBE if sent else Executed.NO,
        cancel_unsent=sent,
    )
