from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.tasks.task_factory import NOW, a_task, an_attempt

from taskgate.core.errors import CallerError
from taskgate.core.ids import RANDOM_BYTES, creation_ms, is_task_id, is_ulid, new_task_id, ulid
from taskgate.core.tasks.deadlines import (
    Ttl,
    approval_is_over,
    execution_is_over,
    is_expired,
    kept_until_ms,
    may_resend_until_ms,
    read_ttl,
    try_until_ms,
)
from taskgate.core.tasks.poll_interval import poll_interval_ms
from taskgate.core.tasks.state import TaskState
from taskgate.core.tool_class import ToolClass, classify_tool


def test_a_ttl_is_defaulted_kept_or_clamped() -> None:
    assert read_ttl(None) == Ttl(600_000)
    assert read_ttl(1) == Ttl(1)
    assert read_ttl(86_400_000) == Ttl(86_400_000)
    assert read_ttl(10**30) == Ttl(86_400_000, clamped=True)
    assert read_ttl(None, default_ms=10, max_ms=5) == Ttl(5)


@pytest.mark.parametrize("asked", [0, -1, 1.0, 1.5, "600000", True, False, [], {}])
def test_a_ttl_that_is_not_a_positive_whole_number_is_the_callers_error(asked: Any) -> None:
    with pytest.raises(CallerError) as caught:
        read_ttl(asked)
    assert caught.value.error_type == "invalid_params"


def test_an_open_task_never_expires() -> None:
    assert kept_until_ms(a_task()) is None
    assert not is_expired(a_task(), NOW + 10**12)


def test_a_finished_task_is_kept_for_its_ttl_and_at_least_five_minutes_from_its_end() -> None:
    early = a_task(state=TaskState.COMPLETED, finished_ms=NOW + 5)
    assert kept_until_ms(early) == NOW + 600_000
    late = a_task(state=TaskState.COMPLETED, finished_ms=NOW + 900_000)
    assert kept_until_ms(late) == NOW + 1_200_000
    assert not is_expired(late, NOW + 1_199_999)
    assert is_expired(late, NOW + 1_200_000)
    asked_for_less = a_task(state=TaskState.COMPLETED, finished_ms=NOW + 900_000, keep_result_ms=1)
    assert is_expired(asked_for_less, NOW + 900_001)


@pytest.mark.parametrize("state", list(TaskState))
def test_the_approval_deadline_applies_only_while_an_approval_is_pending_or_unused(state: TaskState) -> None:
    over = approval_is_over(a_task(state=state, approval_deadline_ms=NOW), NOW)
    assert over == (state in (TaskState.AWAITING_APPROVAL, TaskState.APPROVED))
    assert not approval_is_over(a_task(state=state), NOW)
    assert not approval_is_over(a_task(state=state, approval_deadline_ms=NOW + 1), NOW)


@pytest.mark.parametrize("state", list(TaskState))
def test_the_execution_deadline_applies_only_while_the_call_runs(state: TaskState) -> None:
    over = execution_is_over(a_task(state=state, execution_deadline_ms=NOW), NOW)
    assert over == (state in (TaskState.RUNNING, TaskState.INPUT_REQUIRED))
    assert not execution_is_over(a_task(state=state), NOW)


def test_the_resend_window_counts_from_the_last_attempt() -> None:
    assert may_resend_until_ms(a_task()) is None
    assert may_resend_until_ms(a_task(last_attempt=an_attempt())) == NOW + 600_000


def test_polling_slows_down_with_load_and_for_people() -> None:
    assert poll_interval_ms(TaskState.RUNNING, 0) == 1_000
    assert poll_interval_ms(TaskState.RUNNING, 10_000) == 20_000
    assert poll_interval_ms(TaskState.RUNNING, 10**9) == 60_000
    assert poll_interval_ms(TaskState.AWAITING_APPROVAL, 0) == 15_000
    assert poll_interval_ms(TaskState.AWAITING_APPROVAL, 10_000) == 20_000


CLASS_TABLE = [
    ({}, ToolClass.ONCE),
    ({"annotations": {"readOnlyHint": True}}, ToolClass.ONCE),
    ({"annotations": {"readOnlyHint": True}, "trust_annotations": True}, ToolClass.READ),
    ({"annotations": {"readOnlyHint": "yes"}, "trust_annotations": True}, ToolClass.ONCE),
    ({"annotations": {"idempotentHint": True}, "trust_annotations": True}, ToolClass.REPEATABLE),
    ({"annotations": {"idempotentHint": True}, "key_argument": "key"}, ToolClass.KEYED),
    ({"annotations": None, "trust_annotations": True, "key_argument": ""}, ToolClass.ONCE),
    (
        {"override": ToolClass.ONCE, "annotations": {"readOnlyHint": True}, "trust_annotations": True},
        ToolClass.ONCE,
    ),
    ({"override": ToolClass.READ}, ToolClass.READ),
]


@pytest.mark.parametrize("received, expected", CLASS_TABLE)
def test_the_class_of_a_tool_is_configured_or_from_trusted_hints_or_once(
    received: dict[str, Any], expected: ToolClass
) -> None:
    assert classify_tool(**received) is expected
    assert expected.may_repeat == (expected is not ToolClass.ONCE)


def test_the_id_of_a_known_moment() -> None:
    made = new_task_id(1_469_918_176_385, bytes(RANDOM_BYTES))
    assert made == "tg_01ARYZ6S41" + "0" * 16
    assert creation_ms(made) == 1_469_918_176_385


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_an_id_contains_its_time(now_ms: int, randomness: bytes) -> None:
    made = new_task_id(now_ms, randomness)
    assert len(made) == 29
    assert is_task_id(made)
    assert creation_ms(made) == now_ms


@given(st.integers(0, 2**48 - 2), st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_later_ids_sort_later(now_ms: int, one: bytes, two: bytes) -> None:
    assert ulid(now_ms, one) < ulid(now_ms + 1, two)


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_ulid_keeps_every_bit_of_its_time_and_its_randomness(now_ms: int, randomness: bytes) -> None:
    number = 0
    for letter in ulid(now_ms, randomness):
        number = number * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    assert number.to_bytes(16, "big") == now_ms.to_bytes(6, "big") + randomness


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tg_",
        "abc-123",
        "01JCQ3Z5W00000000000000000",
        "tg_8JCQ3Z5W000000000000000000",
        "tg_01JCQ3Z5W0000000000000000U",
        "tg_01jcq3z5w00000000000000000",
        "tg_550e8400-e29b-41d4-a716-446655440000",
    ],
)
def test_other_text_is_not_an_id(text: str) -> None:
    assert not is_task_id(text)


def test_a_ulid_refuses_the_wrong_amount_of_randomness_and_impossible_times() -> None:
    with pytest.raises(ValueError, match="random bytes"):
        ulid(0, b"short")
    with pytest.raises(ValueError, match="48 bits"):
        ulid(2**48, bytes(10))


def test_an_unsent_call_is_retried_until_ttl_or_approval_expires_and_a_sent_one_until_its_deadline() -> None:
    waiting = a_task()
    assert try_until_ms(waiting) == NOW + 600_000
    assert try_until_ms(a_task(approval_deadline_ms=NOW + 5)) == NOW + 5
    sent = a_task(last_attempt=an_attempt(), sends=1, unanswered_sends=1, execution_deadline_ms=NOW + 7)
    assert try_until_ms(sent) == NOW + 7


def test_a_ulid_is_distinguished_from_other_text() -> None:
    assert is_ulid(ulid(NOW, bytes(RANDOM_BYTES)))
    assert not is_ulid("x")
