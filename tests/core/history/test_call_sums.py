"""Sums of ended calls: what one task adds to them, and how they are added up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.core.tasks.task_factory import NOW, a_task, an_attempt

from taskgate.core.history.counts import NO_LATENCY, Dimension, step_of
from taskgate.core.history.row import CallOutcome
from taskgate.core.history.sums import CallSums, Tally, sums_of_answer, sums_of_task
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import AttemptState, Outcome, OutcomeKind

OK, FAILED, TOOL_ERROR = CallOutcome.OK, CallOutcome.FAILED, CallOutcome.TOOL_ERROR
NAMES = ("ann", "files", "read")
TWO_CALLS = CallSums(
    *NAMES,
    calls=2,
    errors=1,
    seconds=1.5,
    bytes_in=10,
    bytes_out=100,
    cost=0.25,
    ended=((OK, 3, 1), (FAILED, 4, 1)),
    waited=((Dimension.WAITING, OK, 20, 1),),
)
OTHER_CALLS = CallSums(
    *NAMES,
    calls=5,
    errors=2,
    seconds=4.0,
    bytes_in=30,
    bytes_out=7,
    cost=0.5,
    ended=((OK, 3, 2), (OK, 9, 1), (FAILED, 4, 2)),
    waited=((Dimension.WAITING, OK, 20, 2), (Dimension.ANSWERING, OK, 20, 1)),
)


def tally_of(*parts: CallSums) -> Tally:
    tally = Tally(*NAMES)
    for sums in parts:
        tally.add(sums)
    return tally


def test_sums_are_added_up_by_amount_outcome_step_and_wait() -> None:
    assert tally_of(TWO_CALLS, OTHER_CALLS).sums == CallSums(
        *NAMES,
        calls=7,
        errors=3,
        seconds=5.5,
        bytes_in=40,
        bytes_out=107,
        cost=0.75,
        ended=((OK, 3, 3), (FAILED, 4, 3), (OK, 9, 1)),
        waited=((Dimension.WAITING, OK, 20, 3), (Dimension.ANSWERING, OK, 20, 1)),
    )


def test_tally_of_one_sum_is_that_sum() -> None:
    assert tally_of(TWO_CALLS).sums == TWO_CALLS
    assert tally_of().sums == CallSums(*NAMES)


def test_sums_are_stored_as_they_are() -> None:
    stored = msgspec.json.encode(OTHER_CALLS)
    assert msgspec.json.decode(stored, type=CallSums) == OTHER_CALLS
    assert msgspec.json.decode(b'["ann","files","read",3]', type=CallSums) == CallSums(*NAMES, calls=3)


def test_call_of_which_nothing_was_sent_has_an_end_and_no_usage() -> None:
    tally = Tally(*NAMES)
    tally.count(CallOutcome.DENIED, NO_LATENCY)
    tally.count(CallOutcome.DENIED, NO_LATENCY)
    assert tally.sums == CallSums(*NAMES, ended=((CallOutcome.DENIED, NO_LATENCY, 2),))


def test_number_of_plain_calls_and_of_their_errors_is_that_of_their_ends() -> None:
    plain = Tally(*NAMES, references=(object(),))
    plain.count_sent(OK, 0.25, 10, 100)
    plain.count_sent(OK, 0.25, 20, 200)
    plain.count_sent(OK, 4.0, 1, 1)
    plain.count_sent(TOOL_ERROR, 0.25, 2, 2)
    plain.count_sent(FAILED, 0.25, 3, 0)
    fast, slow = step_of(250), step_of(4_000)
    total = tally_of(CallSums(*NAMES, calls=1, cost=0.5, ended=((OK, fast, 1),)))
    total.add_plain(plain)
    assert total.sums == CallSums(
        *NAMES,
        calls=6,
        errors=2,
        seconds=5.0,
        bytes_in=36,
        bytes_out=303,
        cost=0.5,
        ended=((OK, fast, 3), (OK, slow, 1), (TOOL_ERROR, fast, 1), (FAILED, fast, 1)),
    )


ARGUMENTS = len(b'{"year":2026}')
RESULT = Outcome(OutcomeKind.RESULT, b'{"content":[]}')
SENT: dict[str, Any] = {
    "sends": 1,
    "last_attempt": an_attempt(sent_at_ms=NOW + 3_000),
    "params_rest": b'{"_meta":{}}',
    "created_ms": NOW,
    "finished_ms": NOW + 5_000,
}
BYTES_IN = ARGUMENTS + len(b'{"_meta":{}}')


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"state": TaskState.CANCELLED, "finished_ms": NOW + 5_000},
            {"ended": ((CallOutcome.CANCELLED, NO_LATENCY, 1),)},
            id="never sent",
        ),
        pytest.param(
            {"state": TaskState.FAILED, "last_attempt": an_attempt(state=AttemptState.VOID)},
            {"ended": ((FAILED, NO_LATENCY, 1),)},
            id="only attempt sent nothing",
        ),
        pytest.param(
            {"state": TaskState.REJECTED, "approval_id": "ap_1", "finished_ms": NOW + 60_000},
            {
                "ended": ((CallOutcome.REJECTED, NO_LATENCY, 1),),
                "waited": ((Dimension.WAITING, CallOutcome.REJECTED, step_of(60_000), 1),),
            },
            id="denied by an approver: waited to its end",
        ),
        pytest.param(
            {**SENT, "state": TaskState.COMPLETED, "outcome": RESULT},
            {"ended": ((OK, step_of(5_000), 1),), "calls": 1, "seconds": 2.0, "bytes_in": BYTES_IN, "bytes_out": 14},
            id="completed: the duration begins when it is sent",
        ),
        pytest.param(
            {**SENT, "state": TaskState.COMPLETED, "outcome": RESULT, "finished_ms": None, "updated_ms": NOW + 4_000},
            {"ended": ((OK, step_of(4_000), 1),), "calls": 1, "seconds": 1.0, "bytes_in": BYTES_IN, "bytes_out": 14},
            id="completed without a time of its end: that of the last change",
        ),
        pytest.param(
            {**SENT, "state": TaskState.COMPLETED, "outcome": RESULT, "approval_id": "ap_1"},
            {
                "ended": ((OK, step_of(5_000), 1),),
                "waited": ((Dimension.WAITING, OK, step_of(3_000), 1),),
                "calls": 1,
                "seconds": 2.0,
                "bytes_in": BYTES_IN,
                "bytes_out": 14,
            },
            id="approved: waited until it was sent",
        ),
        pytest.param(
            {
                **SENT,
                "state": TaskState.COMPLETED,
                "outcome": Outcome(OutcomeKind.RESULT, is_error=True, spill="f", size=9_000_000),
            },
            {
                "ended": ((TOOL_ERROR, step_of(5_000), 1),),
                "calls": 1,
                "errors": 1,
                "seconds": 2.0,
                "bytes_in": BYTES_IN,
                "bytes_out": 9_000_000,
            },
            id="result with isError in a spill file",
        ),
        pytest.param(
            {**SENT, "state": TaskState.OUTCOME_UNKNOWN},
            {
                "ended": ((CallOutcome.OUTCOME_UNKNOWN, step_of(5_000), 1),),
                "calls": 1,
                "errors": 1,
                "seconds": 2.0,
                "bytes_in": BYTES_IN,
            },
            id="sent, and no result",
        ),
        pytest.param(
            {**SENT, "state": TaskState.EXPIRED},
            {"ended": ((CallOutcome.EXPIRED, step_of(5_000), 1),)},
            id="expired after an attempt",
        ),
        pytest.param(
            {**SENT, "state": TaskState.FAILED, "finished_ms": NOW + 2_000},
            {"ended": ((FAILED, step_of(2_000), 1),), "calls": 1, "errors": 1, "seconds": 0.0, "bytes_in": BYTES_IN},
            id="clock set back: no time",
        ),
        pytest.param(
            {**SENT, "state": TaskState.FAILED, "finished_ms": NOW + 9_000_000},
            {
                "ended": ((FAILED, step_of(9_000_000), 1),),
                "calls": 1,
                "errors": 1,
                "seconds": 60.0,
                "bytes_in": BYTES_IN,
            },
            id="clock set forward: at most the budget of the call",
        ),
    ],
)
def test_ended_task_adds_its_outcome_its_wait_and_its_usage(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sums_of_task(a_task(**changes)) == CallSums("ann", "reports", "build", **expected)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"state": TaskState.RUNNING}, OK), ({"state": TaskState.CANCELLED}, CallOutcome.CANCELLED)],
    ids=["answered", "task ended first"],
)
def test_question_of_a_task_adds_the_time_until_its_answer_or_the_end(
    changes: dict[str, Any], outcome: CallOutcome
) -> None:
    task = a_task(updated_ms=NOW + 30_000, **changes)
    waited = ((Dimension.ANSWERING, outcome, step_of(20_000), 1),)
    assert sums_of_answer(task, NOW + 10_000) == CallSums("ann", "reports", "build", waited=waited)
