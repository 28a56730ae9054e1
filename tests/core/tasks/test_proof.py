from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.tasks.task_factory import NOW, a_task, an_attempt

from taskgate.core.errors import (
    Basis,
    CallerError,
    Executed,
    GatewayFault,
    TaskgateError,
    UpstreamError,
    stated_executed,
)
from taskgate.core.tasks import endings
from taskgate.core.tasks import transition as h
from taskgate.core.tasks.proof import about, executed_of
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AttemptState, Task

QUEUED = a_task(state=TaskState.QUEUED)
RUNNING = a_task(state=TaskState.RUNNING, last_attempt=an_attempt())


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (QUEUED, Executed.MAYBE),
        (a_task(state=TaskState.AWAITING_APPROVAL), Executed.MAYBE),
        (RUNNING, Executed.MAYBE),
        (a_task(state=TaskState.REJECTED, executed=Executed.NO), Executed.NO),
        (a_task(state=TaskState.COMPLETED, executed=Executed.YES, last_attempt=an_attempt()), Executed.YES),
        (a_task(state=TaskState.OUTCOME_UNKNOWN, executed=Executed.MAYBE), Executed.MAYBE),
        (a_task(state=TaskState.FAILED, executed=Executed.NO, last_attempt=an_attempt()), Executed.MAYBE),
        (a_task(state=TaskState.FAILED), Executed.MAYBE),
        (
            a_task(
                state=TaskState.FAILED,
                executed=Executed.NO,
                last_attempt=msgspec.structs.replace(an_attempt(), state=AttemptState.VOID),
            ),
            Executed.NO,
        ),
    ],
)
def test_only_ended_record_proves_that_call_did_not_run(task: Task, expected: Executed) -> None:
    assert executed_of(task) is expected


def test_error_about_task_states_its_record() -> None:
    error = about(RUNNING, GatewayFault("shutting_down", "soon"))
    assert (error.executed, error.basis, error.data["task_id"]) == (Executed.MAYBE, Basis.RECORD, RUNNING.id)
    assert stated_executed(error, "tasks/result", {}) is Executed.MAYBE


@pytest.mark.parametrize(
    ("error", "method", "params", "expected"),
    [
        (CallerError("invalid_params", "x"), "tools/call", {"name": "files__read"}, Executed.NO),
        (CallerError("invalid_params", "x"), "tasks/get", {}, None),
        (CallerError("invalid_params", "x"), "tools/call", {"name": "get_task"}, None),
        (UpstreamError("upstream_unreachable", "x", executed=Executed.NO), "tasks/get", {}, None),
        (CallerError("policy_denied", "x"), "tools/call", {"requestState": "s"}, Executed.MAYBE),
        (UpstreamError("x", "x", executed=Executed.NO), "tools/call", {"requestState": "s"}, Executed.MAYBE),
        (UpstreamError("x", "x", executed=Executed.YES), "tools/call", {"requestState": "s"}, Executed.YES),
        (
            CallerError("x", "x", executed=Executed.NO, basis=Basis.RECORD),
            "tools/call",
            {"requestState": "s"},
            Executed.NO,
        ),
        (UpstreamError("x", "x", executed=Executed.YES), "tools/call", {}, Executed.YES),
        (CallerError("x", "x", executed=Executed.NO, basis=Basis.RECORD), "tasks/cancel", {}, Executed.NO),
    ],
)
def test_error_states_executed_by_its_type(
    error: TaskgateError, method: str, params: dict[str, object], expected: Executed | None
) -> None:
    assert stated_executed(error, method, params) is expected


def test_refusal_after_send_is_no_proof() -> None:
    """A repeatable call was sent once without an answer, and the second attempt is refused before it is sent."""
    refusal = CallerError("overloaded", "full")
    ending = endings.by_error(RUNNING, refusal)
    assert ending.executed is Executed.MAYBE
    assert msgspec.json.decode(ending.error)["data"]["executed"] == "maybe"
    assert endings.by_error(QUEUED, refusal).executed is Executed.NO


def test_record_of_refusal_after_send_is_not_proof_either() -> None:
    after = h.apply(RUNNING, h.ErrorReceived(b"{}", "full", Executed.NO), NOW)
    assert isinstance(after, Task)
    assert after.executed is Executed.MAYBE


EVENTS = st.sampled_from(
    [
        h.Dispatched(1, "hash", "files"),
        h.AttemptVoided(),
        h.ErrorReceived(b"{}", "no", Executed.NO),
        h.ContactLost(b"{}", "lost"),
        h.Cancelled(None),
        h.RunRefused(b"{}", "no"),
        h.ApprovalExpired(b"{}"),
        h.InputRequested(("q",), None, b"s", ends_round=True),
        h.InputSettled(("q",)),
    ]
)


@given(st.lists(EVENTS, max_size=12))
def test_record_that_ends_without_execution_was_never_sent_without_proof(events: list[h.TransitionEvent]) -> None:
    task = QUEUED
    for event in events:
        after = h.apply(task, event, NOW)
        task = after if isinstance(after, Task) else task
    if task.state.is_terminal and task.executed is Executed.NO:
        assert not task.may_have_been_sent
