"""What can happen to a task, as values. `transition.apply` turns one of these into the next value of the task.

Each value carries only what the event itself brings; the time comes from the store. `kind_of` gives the name under
which the table in `state` knows it.

The one function that moves a task: `apply(task, event, now)` gives the next value, or says why not.

Pure. The stores call it inside the transaction that writes the result, so that the table in `state` is the law in every
store. A refusal is a value, not an exception: a late answer to a cancelled task is everyday life.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from taskgate.core.errors import Executed
from taskgate.core.tasks.state import MOVES, TaskState, TransitionKind
from taskgate.core.tasks.task import (
    AWAITING_APPROVAL,
    Attempt,
    AttemptState,
    Outcome,
    OutcomeKind,
    Task,
    UpstreamHandle,
)


class ApprovalAsked(msgspec.Struct, frozen=True):
    approval_id: str
    deadline_ms: int
    message: str = AWAITING_APPROVAL


class ApprovalGranted(msgspec.Struct, frozen=True):
    good_until_ms: int
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


class Dispatched(msgspec.Struct, frozen=True):
    """The intent to send: written before the first byte goes out."""

    fence: int
    byte_hash: str
    upstream: str
    message: str | None = None


class AttemptVoided(msgspec.Struct, frozen=True):
    """Proof that the last attempt was not executed, so that another one is safe for every class."""


class UpstreamTaskKnown(msgspec.Struct, frozen=True):
    """The upstream made a task of the call; None when it has forgotten that task and nothing is left to ask for."""

    handle: UpstreamHandle | None


class Noted(msgspec.Struct, frozen=True):
    """Progress or a status text; changes nothing else and may be lost in a crash."""

    message: str | None = None
    progress: float | None = None
    total: float | None = None


class InputAsked(msgspec.Struct, frozen=True):
    """Questions came. `ends_round`: they are the server's answer to what was sent, and their answers go out as another round."""

    keys: tuple[str, ...]
    message: str | None = None
    request_state: bytes | None = None
    ends_round: bool = False


class InputSettled(msgspec.Struct, frozen=True):
    """Questions that were answered, declined, expired or withdrawn."""

    keys: tuple[str, ...]
    message: str | None = None


class ResultCame(msgspec.Struct, frozen=True):
    body: bytes
    is_error: bool = False
    message: str | None = None


class ErrorCame(msgspec.Struct, frozen=True):
    """A JSON-RPC error: the upstream's own, or ours with what we know about the effect."""

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
    ApprovalAsked
    | ApprovalGranted
    | ApprovalDenied
    | ApprovalExpired
    | RunRefused
    | Dispatched
    | AttemptVoided
    | UpstreamTaskKnown
    | Noted
    | InputAsked
    | InputSettled
    | ResultCame
    | ErrorCame
    | ContactLost
    | Cancelled
)

_KINDS: dict[type, TransitionKind] = {
    ApprovalAsked: TransitionKind.APPROVAL_ASKED,
    ApprovalGranted: TransitionKind.APPROVAL_GRANTED,
    ApprovalDenied: TransitionKind.APPROVAL_DENIED,
    ApprovalExpired: TransitionKind.APPROVAL_EXPIRED,
    RunRefused: TransitionKind.REFUSED,
    Dispatched: TransitionKind.DISPATCHED,
    AttemptVoided: TransitionKind.ATTEMPT_VOIDED,
    UpstreamTaskKnown: TransitionKind.UPSTREAM_TASK_KNOWN,
    Noted: TransitionKind.NOTED,
    InputAsked: TransitionKind.INPUT_ASKED,
    ResultCame: TransitionKind.RESULT_CAME,
    ErrorCame: TransitionKind.ERROR_CAME,
    ContactLost: TransitionKind.CONTACT_LOST,
    Cancelled: TransitionKind.CANCELLED,
}


def kind_of(task: Task, event: TransitionEvent) -> TransitionKind:
    """The table's name for it, which may depend on the task.

    Settling questions counts as partial while others are still open. Losing contact makes the outcome unknown only where
    that is true: for a call that is out and may not simply be tried again; otherwise it is an ordinary failure.
    """
    if isinstance(event, InputSettled):
        left = set(task.question_keys) - set(event.keys)
        return TransitionKind.INPUT_PARTLY_SETTLED if left else TransitionKind.INPUT_SETTLED
    if isinstance(event, ContactLost) and (task.tool_class.may_repeat or not task.may_have_been_sent):
        return TransitionKind.ERROR_CAME
    return _KINDS[type(event)]


MAX_ATTEMPTS: Final = 3


class AlreadyOver(msgspec.Struct, frozen=True):
    """The task is in a final state; nothing can happen to it any more."""

    state: TaskState


class NotPossible(msgspec.Struct, frozen=True):
    """The table has no such move."""

    state: TaskState
    kind: TransitionKind


class MayNotRepeat(msgspec.Struct, frozen=True):
    """Sending again could run the tool twice, or was tried often enough."""

    attempts: int


Refusal = AlreadyOver | NotPossible | MayNotRepeat


def apply(task: Task, event: TransitionEvent, now_ms: int) -> Task | Refusal:
    """The task after `event`, or the reason why it cannot happen."""
    if task.state.is_terminal:
        return AlreadyOver(task.state)
    kind = kind_of(task, event)
    after = MOVES[task.state].get(kind)
    if after is None:
        return NotPossible(task.state, kind)
    if isinstance(event, Dispatched) and not may_send(task):
        return MayNotRepeat(task.attempts)
    moved = replace(_with_details(task, event, now_ms), state=after, updated_ms=now_ms, revision=task.revision + 1)
    return _finished(moved, now_ms) if after.is_terminal else moved


def may_send(task: Task) -> bool:
    """Whether one more attempt is safe: never while a `ONCE` call may have been executed without an answer, and at most three
    times for the others. A server that answered with questions waits for the next round.
    """
    if task.upstream_handle is not None:
        return not task.may_have_been_sent
    if task.times_unanswered == 0:
        return True
    return task.tool_class.may_repeat and task.times_unanswered < MAX_ATTEMPTS


def _finished(task: Task, now_ms: int) -> Task:
    attempt = task.last_attempt
    if attempt is not None and attempt.state is AttemptState.DISPATCHING and task.executed is Executed.YES:
        attempt = replace(attempt, state=AttemptState.ANSWERED)
    return replace(task, finished_ms=now_ms, last_attempt=attempt, question_keys=())


def _with_details(task: Task, event: TransitionEvent, now_ms: int) -> Task:
    """What the event brings, apart from the state. Text that says nothing new leaves the old text."""
    match event:
        case ApprovalAsked(approval_id, deadline_ms, message):
            return replace(task, approval_id=approval_id, approval_deadline_ms=deadline_ms, status_message=message)
        case ApprovalGranted(good_until_ms, message):
            return replace(task, approval_deadline_ms=good_until_ms, status_message=message)
        case Dispatched():
            return _sent(task, event, now_ms)
        case AttemptVoided():
            return _voided(task)
        case UpstreamTaskKnown(handle):
            return replace(task, upstream_handle=handle)
        case Noted(message, progress, total):
            return replace(
                task,
                status_message=message if message is not None else task.status_message,
                progress=progress if progress is not None else task.progress,
                progress_total=total if total is not None else task.progress_total,
            )
        case InputAsked() | InputSettled():
            return _questions_changed(task, event)
        case _:
            return _ended(task, event)


Ending: TypeAlias = ApprovalDenied | ApprovalExpired | RunRefused | ResultCame | ErrorCame | ContactLost | Cancelled


def _ended(task: Task, event: Ending) -> Task:
    match event:
        case ApprovalDenied(error, message) | ApprovalExpired(error, message) | RunRefused(error, message):
            return _ended_by_error(task, error, message, Executed.NO)
        case ResultCame(body, is_error, message):
            outcome = Outcome(OutcomeKind.RESULT, body, is_error=is_error, size=len(body))
            return replace(task, outcome=outcome, status_message=message, executed=Executed.YES)
        case ErrorCame(error, message, executed):
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
    # A further attempt does not buy more time: the deadline counts from the first one.
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


def _voided(task: Task) -> Task:
    """The last attempt does not count. If none is left that does, the clock of the execution has not started."""
    attempt = task.last_attempt
    if attempt is None or attempt.state is not AttemptState.DISPATCHING:
        return task
    sends = max(0, task.times_sent - 1)
    return replace(
        task,
        last_attempt=replace(attempt, state=AttemptState.VOID),
        sends=sends,
        unanswered_sends=max(0, task.times_unanswered - 1),
        execution_deadline_ms=task.execution_deadline_ms if sends else None,
    )


def _questions_changed(task: Task, event: InputAsked | InputSettled) -> Task:
    message = event.message if event.message is not None else task.status_message
    if isinstance(event, InputAsked):
        fresh = tuple(key for key in dict.fromkeys(event.keys) if key not in task.question_keys)
        state = event.request_state if event.request_state is not None else task.request_state
        asked = replace(task, question_keys=task.question_keys + fresh, status_message=message, request_state=state)
        return _round_ended(asked) if event.ends_round else asked
    left = tuple(key for key in task.question_keys if key not in event.keys)
    if not left and event.message is None:
        # The text was the question, and there is none any more.
        message = None
    return replace(task, question_keys=left, status_message=message)


def _round_ended(task: Task) -> Task:
    attempt = task.last_attempt
    if attempt is not None and attempt.state is AttemptState.DISPATCHING:
        attempt = replace(attempt, state=AttemptState.ANSWERED)
    return replace(task, last_attempt=attempt, sends=task.times_sent, unanswered_sends=0)


def _cancelled(task: Task, event: Cancelled) -> Task:
    sent = task.may_have_been_sent
    message = f"Cancelled: {event.reason}" if event.reason else "Cancelled"
    message += ". The call had been sent and may have taken effect." if sent else ". The tool was not run."
    outcome = None
    if event.error is not None:
        outcome = Outcome(OutcomeKind.ERROR, event.error, is_error=True, size=len(event.error))
    return replace(
        task,
        outcome=outcome,
        status_message=message,
        executed=Executed.MAYBE if sent else Executed.NO,
        cancel_owed=sent,
    )
