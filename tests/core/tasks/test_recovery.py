from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.core.tasks.task_factory import NOW, a_task, an_attempt

from taskgate.core.generations.generation import Generation
from taskgate.core.tasks.endings import after_restore, gave_up_text, outcome_unknown_text, past_deadline_text
from taskgate.core.tasks.recovery import RecoveryAction, ends_at_once, next_action
from taskgate.core.tasks.state import TERMINAL, TaskState
from taskgate.core.tasks.task import AttemptState, UpstreamHandle
from taskgate.core.tasks.transition import ContactLost, ErrorReceived
from taskgate.core.timestamps import iso
from taskgate.core.tool_class import ToolClass

OUT = an_attempt()
LONG_AGO = an_attempt(sent_at_ms=NOW - 600_000)
STATEFUL_TASK = UpstreamHandle("reports", "up-1", "s-1", Generation.STATEFUL)
STATELESS_TASK = UpstreamHandle("reports", "up-1", None, Generation.STATELESS)
REPEATABLE = (ToolClass.READ, ToolClass.REPEATABLE, ToolClass.KEYED)

TABLE: list[tuple[str, dict[str, Any], RecoveryAction]] = [
    ("accepted, no attempt", {"state": TaskState.QUEUED}, RecoveryAction.RUN),
    (
        "awaiting approval",
        {"state": TaskState.AWAITING_APPROVAL, "approval_deadline_ms": NOW + 1},
        RecoveryAction.KEEP_WAITING_FOR_APPROVAL,
    ),
    (
        "awaiting approval, too late",
        {"state": TaskState.AWAITING_APPROVAL, "approval_deadline_ms": NOW},
        RecoveryAction.EXPIRE_APPROVAL,
    ),
    ("approved", {"state": TaskState.APPROVED, "approval_deadline_ms": NOW + 1}, RecoveryAction.RECHECK_THEN_RUN),
    (
        "approved, no longer good",
        {"state": TaskState.APPROVED, "approval_deadline_ms": NOW},
        RecoveryAction.EXPIRE_APPROVAL,
    ),
    (
        "dispatching, upstream task known",
        {"state": TaskState.RUNNING, "last_attempt": OUT, "upstream_handle": STATEFUL_TASK},
        RecoveryAction.POLL_UPSTREAM,
    ),
    (
        "dispatching, once",
        {"state": TaskState.RUNNING, "last_attempt": OUT, "tool_class": ToolClass.ONCE},
        RecoveryAction.REPORT_UNKNOWN,
    ),
    (
        "dispatching, once, but the attempt is proven void",
        {"state": TaskState.RUNNING, "last_attempt": an_attempt(state=AttemptState.VOID)},
        RecoveryAction.RESEND,
    ),
    (
        "dispatching, read, third attempt",
        {"state": TaskState.RUNNING, "last_attempt": an_attempt(number=3), "tool_class": ToolClass.READ},
        RecoveryAction.REPORT_FAILED,
    ),
    (
        "dispatching, read, too long ago",
        {
            "state": TaskState.RUNNING,
            "last_attempt": an_attempt(sent_at_ms=NOW - 600_000),
            "tool_class": ToolClass.READ,
        },
        RecoveryAction.REPORT_FAILED,
    ),
    (
        "dispatching, read, out of its budget",
        {
            "state": TaskState.RUNNING,
            "last_attempt": OUT,
            "tool_class": ToolClass.READ,
            "execution_deadline_ms": NOW,
        },
        RecoveryAction.REPORT_FAILED,
    ),
    (
        "waiting for input, stateless by request state",
        {"state": TaskState.INPUT_REQUIRED, "last_attempt": OUT, "request_state": b'"s"'},
        RecoveryAction.KEEP_WAITING_FOR_INPUT,
    ),
    (
        "waiting for input, stateless upstream task",
        {"state": TaskState.INPUT_REQUIRED, "last_attempt": OUT, "upstream_handle": STATELESS_TASK},
        RecoveryAction.KEEP_WAITING_FOR_INPUT,
    ),
    (
        "waiting for input, stateful upstream task",
        {"state": TaskState.INPUT_REQUIRED, "last_attempt": OUT, "upstream_handle": STATEFUL_TASK},
        RecoveryAction.POLL_UPSTREAM,
    ),
    (
        "waiting for input, stateful, once",
        {"state": TaskState.INPUT_REQUIRED, "last_attempt": OUT},
        RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN,
    ),
    (
        "waiting for input, stateful, read",
        {"state": TaskState.INPUT_REQUIRED, "last_attempt": OUT, "tool_class": ToolClass.READ},
        RecoveryAction.WITHDRAW_THEN_RESEND,
    ),
    (
        "waiting for input, stateful, read, third attempt",
        {"state": TaskState.INPUT_REQUIRED, "last_attempt": an_attempt(number=3), "tool_class": ToolClass.READ},
        RecoveryAction.WITHDRAW_THEN_REPORT_FAILED,
    ),
    ("cancelled before dispatch", {"state": TaskState.CANCELLED}, RecoveryAction.NOTHING),
    (
        "cancelled during dispatch, upstream not notified",
        {"state": TaskState.CANCELLED, "cancel_unsent": True},
        RecoveryAction.CANCEL_UPSTREAM,
    ),
]


@pytest.mark.parametrize("facts, action", [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_next_owner_does_what_the_recovery_table_says(facts: dict[str, Any], action: RecoveryAction) -> None:
    assert next_action(a_task(**facts), NOW) is action


@pytest.mark.parametrize("tool_class", REPEATABLE)
def test_a_repeatable_call_that_was_out_is_sent_again(tool_class: ToolClass) -> None:
    task = a_task(state=TaskState.RUNNING, last_attempt=OUT, tool_class=tool_class)
    assert next_action(task, NOW) is RecoveryAction.RESEND


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_finished_task_is_not_recovered(state: TaskState) -> None:
    assert next_action(a_task(state=state), NOW) is RecoveryAction.NOTHING


@pytest.mark.parametrize("tool_class", REPEATABLE)
@pytest.mark.parametrize("state", list(TaskState))
def test_only_calls_that_may_not_be_repeated_end_as_unknown(state: TaskState, tool_class: ToolClass) -> None:
    task = a_task(state=state, last_attempt=OUT, tool_class=tool_class)
    unknown = (RecoveryAction.REPORT_UNKNOWN, RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN)
    assert next_action(task, NOW) not in unknown


def test_the_text_of_an_unknown_outcome_names_tool_server_time_and_reference() -> None:
    text = outcome_unknown_text(a_task(state=TaskState.RUNNING, last_attempt=OUT))
    assert text == (
        f"Outcome unknown. Taskgate sent `build` to `reports` at {iso(NOW)} and lost contact before a result arrived. "
        "The call may or may not have taken effect. It was not sent again because this tool is not known to be safe to "
        "repeat. Check the target system before trying again. Ref tg_01JCQ3Z5W00000000000000000, attempt 1."
    )
    assert iso(NOW) in outcome_unknown_text(a_task())


def test_texts_of_failures_name_the_task() -> None:
    assert a_task().id in gave_up_text(a_task(last_attempt=an_attempt(number=3)))
    assert "60 s" in past_deadline_text(a_task())


def test_times_are_shown_in_utc_with_milliseconds() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000Z"
    for ms in (-1, 999, 1_000, 1_794_827_827_323, 1_794_827_827_999, 253_402_300_799_007):
        expected = datetime.fromtimestamp(ms // 1000, UTC) + timedelta(milliseconds=ms % 1000)
        assert iso(ms) == expected.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        ({"state": TaskState.QUEUED}, RecoveryAction.LEAVE_TO_A_PERSON),
        ({"state": TaskState.QUEUED, "tool_class": ToolClass.READ}, RecoveryAction.RUN),
        (
            {"state": TaskState.QUEUED, "tool_class": ToolClass.READ, "parent": "tg_script"},
            RecoveryAction.LEAVE_TO_A_PERSON,
        ),
        ({"state": TaskState.COMPLETED}, RecoveryAction.NOTHING),
        ({"state": TaskState.APPROVED, "tool_class": ToolClass.READ}, RecoveryAction.LEAVE_TO_A_PERSON),
        ({"state": TaskState.AWAITING_APPROVAL, "tool_class": ToolClass.READ}, RecoveryAction.LEAVE_TO_A_PERSON),
    ],
)
def test_in_a_restored_store_nothing_runs_that_may_run_only_once(facts: dict[str, Any], action: RecoveryAction) -> None:
    assert next_action(a_task(**facts), NOW, restored=True) is action


def test_only_a_task_that_its_next_owner_cannot_continue_ends_at_once() -> None:
    once = a_task(state=TaskState.RUNNING, last_attempt=OUT, tool_class=ToolClass.ONCE)
    ended = ends_at_once(once, NOW)
    assert isinstance(ended, ContactLost)
    assert ends_at_once(a_task(state=TaskState.QUEUED), NOW) is None
    assert ends_at_once(a_task(state=TaskState.QUEUED), NOW, restored=True) == after_restore(
        a_task(state=TaskState.QUEUED)
    )


@pytest.mark.parametrize(("number", "times"), [(3, "3 times"), (1, "once")])
def test_repeatable_call_whose_gateway_stopped_is_no_failure_of_its_server(number: int, times: str) -> None:
    out = an_attempt(number=number, sent_at_ms=NOW - 600_000)
    ended = ends_at_once(a_task(state=TaskState.RUNNING, last_attempt=out, tool_class=ToolClass.READ), NOW)
    assert isinstance(ended, ErrorReceived)
    data = json.loads(ended.error)["data"]
    assert (data["error_type"], data["executed"]) == ("outcome_unknown", "maybe")
    assert times in ended.message
