"""The task of a script, and the tasks of its calls: states, recovery, retention."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.core.tasks.task_factory import NOW, a_task

from taskgate.core.errors import Executed
from taskgate.core.scripts.record import OpenCall, ScriptRecord
from taskgate.core.tasks.deadlines import is_expired, kept_until_ms
from taskgate.core.tasks.recovery import RecoveryAction, next_action
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Cancelled, ScriptStarted, apply


def test_started_script_runs_without_deadline_or_attempt() -> None:
    running = apply(a_task(script=True), ScriptStarted(), NOW + 1)
    assert isinstance(running, Task)
    assert running.state is TaskState.RUNNING
    assert (running.execution_deadline_ms, running.last_attempt) == (None, None)


@pytest.mark.parametrize(
    ("state", "action"),
    [
        (TaskState.QUEUED, RecoveryAction.RUN),
        (TaskState.RUNNING, RecoveryAction.RUN),
        (TaskState.INPUT_REQUIRED, RecoveryAction.RUN),
        (TaskState.AWAITING_APPROVAL, RecoveryAction.KEEP_WAITING_FOR_APPROVAL),
        (TaskState.COMPLETED, RecoveryAction.NOTHING),
    ],
)
def test_next_owner_continues_a_script(state: TaskState, action: RecoveryAction) -> None:
    assert next_action(a_task(script=True, state=state), NOW) is action


def test_script_in_a_restored_store_is_left_to_a_person() -> None:
    task = a_task(script=True, state=TaskState.RUNNING)
    assert next_action(task, NOW, restored=True) is RecoveryAction.LEAVE_TO_A_PERSON


@pytest.mark.parametrize(
    ("state", "executed", "due"),
    [(TaskState.QUEUED, Executed.NO, False), (TaskState.RUNNING, Executed.MAYBE, True)],
)
def test_cancelled_running_script_has_pending_cancellations_for_its_calls(
    state: TaskState, executed: Executed, due: bool
) -> None:
    cancelled = apply(a_task(script=True, state=state), Cancelled(), NOW + 1)
    assert isinstance(cancelled, Task)
    assert (cancelled.executed, cancelled.cancel_unsent) == (executed, due)


def test_call_of_a_script_is_kept_until_the_script_is_deleted() -> None:
    ended = a_task(state=TaskState.COMPLETED, finished_ms=NOW)
    child = replace(ended, parent="tg_script")
    assert is_expired(ended, NOW + 10**10)
    assert not is_expired(child, NOW + 10**10)
    assert kept_until_ms(child) is None


def test_record_names_the_tasks_that_the_script_waits_for() -> None:
    pending = (OpenCall(1, "files__read", child="tg_1"), OpenCall(2, "sleep", due_ms=5))
    assert ScriptRecord(pending=pending).pending_children == ("tg_1",)
