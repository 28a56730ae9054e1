"""The states of a task, the events that change them, and the table of legal transitions.

`MOVES` is the single definition of the state machine: `transition.apply` looks transitions up in it, the diagrams are
drawn from it and the tests enumerate it. Wire formats are in the projections; this module has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

_FINAL: Final = frozenset({"completed", "failed", "cancelled", "rejected", "expired", "outcome_unknown"})


class TaskState(StrEnum):
    """The state of a task. The last six are final."""

    QUEUED = "queued"
    AWAITING_APPROVAL = "awaiting_approval"
    APPROVED = "approved"
    RUNNING = "running"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    OUTCOME_UNKNOWN = "outcome_unknown"

    def __init__(self, text: str) -> None:
        # An attribute, because one task reads it forty times.
        self.is_terminal = text in _FINAL


class TransitionKind(StrEnum):
    """The kinds of events that change a task, as the table and the diagrams name them."""

    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_GRANTED = "approval_granted"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_EXPIRED = "approval_expired"
    REFUSED = "refused"
    DISPATCHED = "dispatched"
    SCRIPT_STARTED = "script_started"
    ATTEMPT_VOIDED = "attempt_voided"
    ATTEMPT_LOST = "attempt_lost"
    UPSTREAM_TASK_KNOWN = "upstream_task_known"
    NOTED = "noted"
    INPUT_REQUESTED = "input_requested"
    INPUT_PARTLY_SETTLED = "input_partly_settled"
    INPUT_SETTLED = "input_settled"
    RESULT_RECEIVED = "result_received"
    ERROR_RECEIVED = "error_received"
    CONTACT_LOST = "contact_lost"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset(state for state in TaskState if state.is_terminal)

OPEN: Final = frozenset(TaskState) - TERMINAL

# The initial state. `running` is for a call that was already in flight when it became a task.
INITIAL_STATES: Final = (TaskState.QUEUED, TaskState.AWAITING_APPROVAL, TaskState.RUNNING)

_S = TaskState
_H = TransitionKind

MOVES: Final[Mapping[TaskState, Mapping[TransitionKind, TaskState]]] = MappingProxyType(
    {
        _S.QUEUED: {
            _H.APPROVAL_REQUESTED: _S.AWAITING_APPROVAL,
            _H.REFUSED: _S.REJECTED,
            _H.DISPATCHED: _S.RUNNING,
            _H.SCRIPT_STARTED: _S.RUNNING,
            _H.NOTED: _S.QUEUED,
            # The gateway requests input before anything is sent: an account must be connected first.
            _H.INPUT_REQUESTED: _S.INPUT_REQUIRED,
            _H.ERROR_RECEIVED: _S.FAILED,
            _H.CANCELLED: _S.CANCELLED,
        },
        _S.AWAITING_APPROVAL: {
            _H.APPROVAL_GRANTED: _S.APPROVED,
            _H.APPROVAL_DENIED: _S.REJECTED,
            _H.APPROVAL_EXPIRED: _S.EXPIRED,
            _H.REFUSED: _S.REJECTED,
            _H.NOTED: _S.AWAITING_APPROVAL,
            _H.ERROR_RECEIVED: _S.FAILED,
            _H.CANCELLED: _S.CANCELLED,
        },
        _S.APPROVED: {
            # Something changed since the decision: an approver must decide again.
            _H.APPROVAL_REQUESTED: _S.AWAITING_APPROVAL,
            # An approval is valid for a limited time; the run was not requested within it.
            _H.APPROVAL_EXPIRED: _S.EXPIRED,
            _H.REFUSED: _S.REJECTED,
            _H.DISPATCHED: _S.RUNNING,
            _H.SCRIPT_STARTED: _S.RUNNING,
            _H.NOTED: _S.APPROVED,
            _H.INPUT_REQUESTED: _S.INPUT_REQUIRED,
            _H.ERROR_RECEIVED: _S.FAILED,
            _H.CANCELLED: _S.CANCELLED,
        },
        _S.RUNNING: {
            # A further attempt; `transition` refuses it if sending again is not safe.
            _H.DISPATCHED: _S.RUNNING,
            _H.ATTEMPT_VOIDED: _S.RUNNING,
            _H.ATTEMPT_LOST: _S.RUNNING,
            _H.UPSTREAM_TASK_KNOWN: _S.RUNNING,
            _H.NOTED: _S.RUNNING,
            _H.INPUT_REQUESTED: _S.INPUT_REQUIRED,
            _H.RESULT_RECEIVED: _S.COMPLETED,
            _H.ERROR_RECEIVED: _S.FAILED,
            _H.CONTACT_LOST: _S.OUTCOME_UNKNOWN,
            _H.CANCELLED: _S.CANCELLED,
        },
        _S.INPUT_REQUIRED: {
            _H.UPSTREAM_TASK_KNOWN: _S.INPUT_REQUIRED,
            _H.NOTED: _S.INPUT_REQUIRED,
            _H.INPUT_REQUESTED: _S.INPUT_REQUIRED,
            _H.INPUT_PARTLY_SETTLED: _S.INPUT_REQUIRED,
            _H.INPUT_SETTLED: _S.RUNNING,
            _H.RESULT_RECEIVED: _S.COMPLETED,
            _H.ERROR_RECEIVED: _S.FAILED,
            _H.CONTACT_LOST: _S.OUTCOME_UNKNOWN,
            _H.CANCELLED: _S.CANCELLED,
        },
        **{state: {} for state in TERMINAL},
    }
)


def mermaid() -> str:
    """Return the table as a Mermaid state diagram, without notes that leave the state unchanged."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in INITIAL_STATES]
    for state in TaskState:
        reached: dict[TaskState, list[str]] = {}
        for kind, after in MOVES[state].items():
            if kind is not TransitionKind.NOTED:
                reached.setdefault(after, []).append(kind.value)
        lines += [f"    {state} --> {after} : {', '.join(kinds)}" for after, kinds in reached.items()]
    lines += [f"    {state} --> [*]" for state in TaskState if state.is_terminal]
    return "\n".join(lines) + "\n"
