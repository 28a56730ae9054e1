"""How often a task was sent, and what may still be sent: over attempts that were void, lost, or answered with questions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.core.tasks.task_factory import a_task

from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.tasks import endings
from taskgate.core.tasks.recovery import RecoveryAction, next_action
from taskgate.core.tasks.task import Attempt, AttemptState, Task
from taskgate.core.tasks.transition import (
    MAX_ATTEMPTS,
    AttemptVoided,
    Dispatched,
    ErrorReceived,
    InputRequested,
    InputSettled,
    MayNotRepeat,
    RoundAnswered,
    apply,
    may_send,
)
from taskgate.core.tool_class import ToolClass

NOW = 1_000_000
SENT = Dispatched(1, "hash", "files")
ASKED = InputRequested(("name",), "Which?", b'"state"', ends_round=True)
ANSWERED = InputSettled(("name",))


def moved(task: Task, *events: Dispatched | AttemptVoided | InputRequested | InputSettled) -> Task:
    for event in events:
        after = apply(task, event, NOW)
        assert isinstance(after, Task), after
        task = after
    return task


def test_a_void_attempt_does_not_undo_an_earlier_one_that_may_have_run() -> None:
    task = moved(a_task(tool_class=ToolClass.READ), SENT, SENT, AttemptVoided())
    assert task.times_sent == 1
    assert task.may_have_been_sent
    assert task.attempts == 2


def test_the_clock_of_the_execution_starts_at_the_first_send() -> None:
    task = moved(a_task(), SENT)
    assert task.execution_deadline_ms is not None
    task = moved(task, AttemptVoided())
    assert task.execution_deadline_ms is None
    assert not task.may_have_been_sent
    later = apply(task, SENT, NOW + 60_000)
    assert isinstance(later, Task)
    assert later.execution_deadline_ms == NOW + 60_000 + task.execution_budget_ms


def test_answers_to_a_round_may_be_sent_once_whatever_the_class() -> None:
    task = moved(a_task(), SENT, ASKED, ANSWERED)
    assert task.between_rounds
    assert may_send(task)
    task = moved(task, SENT)
    assert isinstance(apply(task, SENT, NOW), MayNotRepeat)
    assert moved(task, AttemptVoided()).between_rounds


def test_the_intent_of_a_round_may_store_the_end_of_the_one_before() -> None:
    for state in (b'"state"', None):
        task = moved(a_task(), SENT, Dispatched(1, "hash", "files", answered=RoundAnswered(state)))
        assert (task.request_state, task.times_sent, task.times_unanswered, task.asked) == (state, 2, 1, True)
        assert next_action(task, NOW) is RecoveryAction.REPORT_UNKNOWN
        assert isinstance(apply(task, SENT, NOW), MayNotRepeat)


def test_rounds_do_not_count_as_retries() -> None:
    task = a_task(tool_class=ToolClass.REPEATABLE)
    for _ in range(2 * MAX_ATTEMPTS):
        task = moved(task, SENT, ASKED, ANSWERED)
    assert may_send(task)
    assert task.times_sent == 2 * MAX_ATTEMPTS


def test_after_a_crash_answers_that_were_not_sent_are_sent_and_those_that_were_are_not() -> None:
    answered = moved(a_task(), SENT, ASKED, ANSWERED)
    assert next_action(answered, NOW) is RecoveryAction.KEEP_WAITING_FOR_INPUT
    assert next_action(moved(answered, SENT), NOW) is RecoveryAction.REPORT_UNKNOWN


def test_a_call_that_stopped_between_rounds_was_executed_at_least_in_part() -> None:
    task = moved(a_task(), SENT, ASKED, ANSWERED, SENT, AttemptVoided())
    ending = endings.lost(task, UpstreamError("upstream_unreachable", "No connection."))
    assert isinstance(ending, ErrorReceived)
    assert ending.executed is Executed.MAYBE


def test_a_result_that_was_too_large_counts_as_executed() -> None:
    task = moved(a_task(), SENT)
    ending = endings.lost(task, UpstreamError("result_too_large", "Ask for less.", executed=Executed.YES))
    assert isinstance(ending, ErrorReceived)
    assert ending.executed is Executed.YES


def test_the_text_counts_attempts_that_may_have_arrived() -> None:
    task = moved(a_task(tool_class=ToolClass.READ), SENT, SENT, AttemptVoided(), SENT, AttemptVoided())
    assert "once and never got" in endings.gave_up_text(task)
    assert "2 times and never got" in endings.gave_up_text(moved(task, SENT))


def test_a_record_of_the_first_version_counts_its_attempts_by_number() -> None:
    last = Attempt(2, 1, "hash", "files", NOW)
    old = a_task(tool_class=ToolClass.READ, last_attempt=last)
    assert (old.times_sent, old.times_unanswered) == (2, 2)
    void = a_task(last_attempt=Attempt(1, 1, "hash", "files", NOW, AttemptState.VOID))
    assert not void.may_have_been_sent


@given(st.lists(st.sampled_from(["send", "void", "ask", "answer"]), max_size=30), st.sampled_from(ToolClass))
def test_the_count_of_attempts_equals_that_of_a_model(steps: list[str], tool_class: ToolClass) -> None:
    """Compared with a list of attempts, each marked as void or answered."""
    task, ledger = a_task(tool_class=tool_class), list[str]()
    events = {"send": SENT, "void": AttemptVoided(), "ask": ASKED, "answer": ANSWERED}
    for step in steps:
        after = apply(task, events[step], NOW)  # type: ignore[arg-type]
        if not isinstance(after, Task):
            continue
        if step == "send":
            ledger.append("out")
        elif step == "void" and ledger and ledger[-1] == "out":
            ledger[-1] = "void"
        elif step == "ask":
            ledger = ["answered" if state == "out" else state for state in ledger]
        task = after
    assert task.times_sent == sum(state != "void" for state in ledger)
    assert task.times_unanswered == ledger.count("out")
    if tool_class is ToolClass.ONCE:
        assert ledger.count("out") <= 1
