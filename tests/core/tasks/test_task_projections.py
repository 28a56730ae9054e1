from __future__ import annotations

import json

import msgspec
import pytest
from tests.core.tasks.task_factory import NOW, a_task

from taskgate.core.errors import Executed
from taskgate.core.tasks.projections_stateful import (
    stateful_create_result,
    stateful_list_row,
    stateful_status,
    status_message,
)
from taskgate.core.tasks.projections_stateless import (
    stateless_create_result,
    stateless_detailed,
    stateless_get_result,
    stateless_status,
    stateless_task,
)
from taskgate.core.tasks.projections_tools import proxy_task, shown_status, shown_task, states_shown_as
from taskgate.core.tasks.projections_vendor import (
    vendor_cancelled,
    vendor_created,
    vendor_result,
    vendor_status,
    vendor_task,
)
from taskgate.core.tasks.state import OPEN, TaskState
from taskgate.core.tasks.task import Outcome, OutcomeKind

RESULT = b'{"content":[{"type":"text","text":"ok"}],"x":12345678901234567890123}'
FINE = Outcome(OutcomeKind.RESULT, RESULT)
TOOL_ERROR = Outcome(OutcomeKind.RESULT, RESULT, is_error=True)
ERROR = Outcome(OutcomeKind.ERROR, b'{"code":-32000,"message":"gone"}', is_error=True)

STATUS_TABLE = [
    # state, outcome, stateful, stateless, tools, vendor
    (TaskState.QUEUED, None, "working", "working", "working", "pending"),
    (TaskState.AWAITING_APPROVAL, None, "input_required", "working", "working", "working"),
    (TaskState.APPROVED, None, "working", "working", "working", "working"),
    (TaskState.RUNNING, None, "working", "working", "working", "working"),
    (TaskState.INPUT_REQUIRED, None, "input_required", "input_required", "working", "working"),
    (TaskState.COMPLETED, FINE, "completed", "completed", "completed", "completed"),
    (TaskState.COMPLETED, TOOL_ERROR, "failed", "completed", "failed", "failed"),
    (TaskState.FAILED, ERROR, "failed", "failed", "failed", "failed"),
    (TaskState.CANCELLED, None, "cancelled", "cancelled", "cancelled", "cancelled"),
    (TaskState.REJECTED, ERROR, "failed", "failed", "failed", "failed"),
    (TaskState.EXPIRED, ERROR, "failed", "failed", "expired", "failed"),
    (TaskState.OUTCOME_UNKNOWN, ERROR, "failed", "failed", "failed", "failed"),
]


@pytest.mark.parametrize("state, outcome, stateful, stateless, tools, vendor", STATUS_TABLE)
def test_each_projection_has_its_own_name_for_a_state(
    state: TaskState, outcome: Outcome | None, stateful: str, stateless: str, tools: str, vendor: str
) -> None:
    task = a_task(state=state, outcome=outcome, finished_ms=NOW if state.is_terminal else None)
    assert stateful_status(task) == stateful
    assert stateless_status(task) == stateless
    assert shown_status(task, NOW) == tools
    assert vendor_status(task) == vendor
    assert state in states_shown_as(tools)


def test_the_table_of_state_names_is_complete() -> None:
    assert {row[0] for row in STATUS_TABLE} == set(TaskState)
    assert states_shown_as("working") == OPEN
    assert states_shown_as("nonsense") == frozenset()


def test_a_new_stateful_task_starts_in_working_and_is_shown_twice() -> None:
    created = stateful_create_result(a_task(state=TaskState.AWAITING_APPROVAL, status_message="Awaiting"), 15_000)
    assert created["task"] == {
        "taskId": a_task().id,
        "status": "working",
        "statusMessage": "Awaiting",
        "createdAt": "2027-01-15T08:00:00.000Z",
        "lastUpdatedAt": "2027-01-15T08:00:00.000Z",
        "ttl": 600_000,
        "pollInterval": 15_000,
    }
    flat = {key: value for key, value in created.items() if key != "task"}
    assert flat == {"taskId": a_task().id, "status": "working", "statusMessage": "Awaiting", "pollInterval": 15_000}


def test_a_list_row_names_the_tool_as_the_caller_knows_it() -> None:
    row = stateful_list_row(a_task(), 1000)
    assert row["toolName"] == "reports__build"
    assert "statusMessage" not in row


def test_a_failed_stateful_task_always_has_a_message() -> None:
    assert status_message(a_task(state=TaskState.COMPLETED, outcome=TOOL_ERROR)) is not None
    assert status_message(a_task(state=TaskState.COMPLETED, outcome=FINE)) is None


def test_a_stateless_create_result_is_flat_and_has_no_key_of_our_own() -> None:
    created = stateless_create_result(a_task(status_message="Queued"), 1000)
    assert created == {
        "resultType": "task",
        "taskId": a_task().id,
        "status": "working",
        "statusMessage": "Queued",
        "createdAt": "2027-01-15T08:00:00.000Z",
        "lastUpdatedAt": "2027-01-15T08:00:00.000Z",
        "ttlMs": 600_000,
        "pollIntervalMs": 1000,
    }


def encoded(value: object) -> bytes:
    return msgspec.json.encode(value)


def test_a_completed_stateless_task_inlines_the_result_byte_for_byte() -> None:
    task = a_task(state=TaskState.COMPLETED, outcome=TOOL_ERROR)
    assert b'"result":' + RESULT in encoded(stateless_get_result(task, 1000, outcome=RESULT))


def test_a_failed_stateless_task_inlines_the_error() -> None:
    task = a_task(state=TaskState.REJECTED, outcome=ERROR)
    shown = stateless_get_result(task, 1000, outcome=ERROR.body)
    assert shown["resultType"] == "complete"
    assert b'"error":{"code":-32000' in encoded(shown)


def test_a_stateless_task_lists_its_open_questions() -> None:
    task = a_task(state=TaskState.INPUT_REQUIRED, question_keys=("q1",))
    shown = stateless_detailed(task, 1000, questions={"q1": b'{"method":"elicitation/create"}'})
    assert b'"inputRequests":{"q1":{"method":"elicitation/create"}}' in encoded(shown)
    assert stateless_detailed(task, 1000)["inputRequests"] == {}


def test_a_working_script_whose_calls_ask_lists_their_questions() -> None:
    task = a_task(state=TaskState.RUNNING, script=True)
    shown = stateless_detailed(task, 1000, questions={"call/q1": b'{"method":"elicitation/create"}'})
    assert shown["status"] == "input_required"
    assert list(shown["inputRequests"]) == ["call/q1"]


def test_a_working_stateless_task_inlines_nothing() -> None:
    shown = stateless_detailed(a_task(), 1000, outcome=RESULT)
    assert {"result", "error", "inputRequests"}.isdisjoint(shown)


def test_the_tool_projection_uses_snake_case() -> None:
    assert proxy_task(a_task(), NOW) == {
        "task_id": a_task().id,
        "status": "working",
        "created_at": "2027-01-15T08:00:00.000Z",
        "server": "reports",
        "tool": "build",
    }


def test_the_tool_projection_states_for_whom_a_task_waits() -> None:
    approval = shown_task(a_task(state=TaskState.AWAITING_APPROVAL, status_message="Awaiting"), NOW)
    assert (approval["waiting_for"], approval["status_message"]) == ("approval", "Awaiting")
    question = shown_task(a_task(state=TaskState.INPUT_REQUIRED), NOW)
    assert question["waiting_for"] == "input"
    assert "waiting_for" not in shown_task(a_task(), NOW)


def test_the_tool_projection_shows_deleted_results_as_expired() -> None:
    task = a_task(state=TaskState.COMPLETED, outcome=FINE, finished_ms=NOW)
    assert shown_status(task, NOW + 599_999) == "completed"
    assert shown_status(task, NOW + 600_000) == "expired"


def test_the_vendor_projection_has_integer_times() -> None:
    assert vendor_created(a_task()) == {"taskId": a_task().id, "status": "pending", "createdAt": NOW}
    assert vendor_created(a_task(vendor_id="mine"))["taskId"] == "mine"
    open_task = vendor_task(a_task(), None)
    assert open_task["updatedAt"] == NOW
    assert {"result", "error"}.isdisjoint(open_task)
    done = a_task(state=TaskState.COMPLETED, outcome=FINE, finished_ms=NOW + 1)
    assert b'"result":' + RESULT in encoded(vendor_task(done, outcome=RESULT))
    failed = a_task(state=TaskState.FAILED, outcome=ERROR, finished_ms=NOW + 1)
    assert b'"error":{' in encoded(vendor_task(failed, outcome=ERROR.body))
    assert json.loads(vendor_result(done, RESULT))["completedAt"] == NOW + 1
    assert vendor_cancelled(a_task(state=TaskState.CANCELLED, finished_ms=NOW + 2))["cancelledAt"] == NOW + 2


def test_the_vendor_projection_of_a_tool_error_has_result_and_error() -> None:
    reported = Outcome(OutcomeKind.RESULT, RESULT, is_error=True)
    for message in (None, "no such file"):
        task = a_task(state=TaskState.FAILED, outcome=reported, finished_ms=NOW + 1, status_message=message)
        shown = json.loads(encoded(vendor_task(task, outcome=RESULT)))
        assert shown["result"] == json.loads(RESULT)
        assert shown["error"]["message"] == (message or "The tool reported an error.")


def test_the_tool_projection_shows_progress_arguments_and_errors() -> None:
    running = a_task(state=TaskState.RUNNING, progress=3.0, progress_total=10.0, arguments=b'{"year":2026}')
    shown = shown_task(running, NOW)
    assert (shown["progress"], shown["progress_total"], shown["args"]) == (3.0, 10.0, {"year": 2026})
    assert {"is_error", "error", "waiting_for", "executed"}.isdisjoint(shown)
    waits = shown_task(a_task(state=TaskState.INPUT_REQUIRED), NOW)
    assert waits["waiting_for"] == "input"
    asked = shown_task(a_task(state=TaskState.AWAITING_APPROVAL), NOW)
    assert asked["waiting_for"] == "approval"
    long = shown_task(a_task(arguments=b'{"text":"' + b"x" * 5_000 + b'"}'), NOW)
    assert "args" not in long
    failed = a_task(state=TaskState.FAILED, outcome=ERROR, finished_ms=NOW + 1, executed=Executed.MAYBE)
    assert (
        shown_task(failed, NOW)["is_error"],
        shown_task(failed, NOW)["executed"],
    ) == (
        True,
        "maybe",
    )


def test_the_vendor_projection_shows_the_status_message() -> None:
    assert vendor_task(a_task(status_message="Half done"), None)["statusMessage"] == "Half done"
    assert "statusMessage" not in vendor_task(a_task(), None)


@pytest.mark.parametrize("total, shown", [(None, {"progress": 3}), (9, {"progress": 3, "total": 9})])
def test_a_stateless_task_shows_its_progress_while_it_works(total: float | None, shown: dict[str, float]) -> None:
    task = a_task(state=TaskState.RUNNING, progress=3, progress_total=total)
    assert stateless_task(task, 1000)["_meta"] == {"taskgate/progress": shown}
    ended = a_task(state=TaskState.COMPLETED, outcome=FINE, finished_ms=NOW, progress=3, progress_total=total)
    assert "_meta" not in stateless_task(ended, 1000)


def test_a_task_has_its_conversation() -> None:
    task = a_task(conversation="laptop")
    assert (task.conversation_key.caller, task.conversation_key.name) == ("ann", "laptop")
