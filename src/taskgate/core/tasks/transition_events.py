"""What can happen to a task, as values. `transition.apply` turns one of these into the next value of the task.

Each value carries only what the event itself brings; the time comes from the store. `kind_of` gives the name
under which the table in `state` knows it.
"""

from __future__ import annotations

import msgspec

from taskgate.core.errors import Executed
from taskgate.core.tasks.state import HappeningKind
from taskgate.core.tasks.task import Task, UpstreamHandle


class ApprovalAsked(msgspec.Struct, frozen=True):
    approval_id: str
    deadline_ms: int
    message: str = "Awaiting approval"


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

_KINDS: dict[type, HappeningKind] = {
    ApprovalAsked: HappeningKind.APPROVAL_ASKED,
    ApprovalGranted: HappeningKind.APPROVAL_GRANTED,
    ApprovalDenied: HappeningKind.APPROVAL_DENIED,
    ApprovalExpired: HappeningKind.APPROVAL_EXPIRED,
    RunRefused: HappeningKind.REFUSED,
    Dispatched: HappeningKind.DISPATCHED,
    AttemptVoided: HappeningKind.ATTEMPT_VOIDED,
    UpstreamTaskKnown: HappeningKind.UPSTREAM_TASK_KNOWN,
    Noted: HappeningKind.NOTED,
    InputAsked: HappeningKind.INPUT_ASKED,
    ResultCame: HappeningKind.RESULT_CAME,
    ErrorCame: HappeningKind.ERROR_CAME,
    ContactLost: HappeningKind.CONTACT_LOST,
    Cancelled: HappeningKind.CANCELLED,
}


def kind_of(task: Task, event: TransitionEvent) -> HappeningKind:
    """The table's name for it, which may depend on the task.

    Settling questions counts as partial while others are still open. Losing contact makes the outcome unknown only where
    that is true: for a call that is out and may not simply be tried again; otherwise it is an ordinary failure.
    """
    if isinstance(event, InputSettled):
        left = set(task.question_keys) - set(event.keys)
        return HappeningKind.INPUT_PARTLY_SETTLED if left else HappeningKind.INPUT_SETTLED
    if isinstance(event, ContactLost) and (task.tool_class.may_repeat or not task.may_have_been_sent):
        return HappeningKind.ERROR_CAME
    return _KINDS[type(event)]
