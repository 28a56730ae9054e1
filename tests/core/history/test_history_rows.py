"""Rows of history: their order, their ids, and what of a task becomes a row."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from taskgate.core.errors import Executed
from taskgate.core.generations.generation import Generation
from taskgate.core.governance.approval import Binding, State, open_approval
from taskgate.core.governance.workflow import Workflow
from taskgate.core.history.classify import error_type_of, outcome_of_task, row_of_held, row_of_task, trace_in, trace_of
from taskgate.core.history.filters import HistoryFilter, search_words, words_of
from taskgate.core.history.row import (
    LATEST_MS,
    LONGEST_KEY,
    LONGEST_NAME,
    CallOutcome,
    HistoryRow,
    RowKind,
    as_key,
    cleaned,
    first_number,
    is_row_id,
    number_of,
    numbered,
    why,
)
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Attempt, OutcomeKind, Task
from taskgate.core.tasks.task import Outcome as TaskOutcome

TASK_ID = "tg_01HZZZZZZZZZZZZZZZZZZZZZZZ"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def a_task(state: TaskState = TaskState.COMPLETED, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": TASK_ID,
        "principal": "acme/ann",
        "caller": "acme/ann",
        "scope": "default",
        "server": "files",
        "tool": "delete_file",
        "wire_name": "files__delete_file",
        "arguments": b'{"path":"a"}',
        "digest": "sha256:00",
        "generation": Generation.STATELESS,
        "state": state,
        "client": "agent",
        "created_ms": 1_000,
        "finished_ms": 3_000,
        "ttl_ms": 600_000,
        "execution_budget_ms": 600_000,
    }
    return Task(**{**fields, **changes})


def test_rows_are_ordered_by_their_end_and_then_by_sequence() -> None:
    assert numbered(1_000, 5) < numbered(1_000, 6) < numbered(1_001, 0)
    assert first_number(1_000) <= numbered(1_000, 1 << 20) < first_number(1_001)


@pytest.mark.parametrize("at_ms", [-5, 0, LATEST_MS, LATEST_MS * 9])
def test_every_time_fits_into_a_number_of_63_bits(at_ms: int) -> None:
    assert 0 <= numbered(at_ms, 7) < 1 << 63


def test_id_of_a_row_without_a_task_names_its_number() -> None:
    number = numbered(1_800_000_000_000, 77)
    row = HistoryRow(kind=RowKind.CALL, outcome=CallOutcome.OK, number=number)
    assert number_of(row.id) == number
    assert is_row_id(row.id)
    assert is_row_id(TASK_ID)
    assert row_of_task(a_task(), 0, with_reason=True).id == TASK_ID


@pytest.mark.parametrize(
    "text",
    ["", "hr_", "hr_12", "hr_zzzzzzzzzzzzzzzz", "xx_0000000000000001", "hr_ffffffffffffffff", "hr_+000000000000001"],
)
def test_other_texts_are_no_row_ids(text: str) -> None:
    assert number_of(text) is None
    assert not is_row_id(text)


def test_duration_is_never_negative() -> None:
    row = HistoryRow(kind=RowKind.CALL, outcome=CallOutcome.OK, accepted_ms=2_000, ended_ms=1_500)
    assert row.duration_ms == 0
    assert msgspec.structs.replace(row, ended_ms=2_250).duration_ms == 250
    assert msgspec.structs.replace(row, accepted_ms=0).duration_ms == 0


@pytest.mark.parametrize(
    ("outcome", "parts"),
    [
        (CallOutcome.OK, ("type", "reason")),
        (CallOutcome.FAILED, ("type", "reason")),
        (CallOutcome.TOOL_ERROR, ("type", "reason")),
        (CallOutcome.DENIED, ("type", "reason", "rules[0]")),
        (CallOutcome.REJECTED, ("type", "reason", "rules[0]")),
        (CallOutcome.EXPIRED, ("type", "reason", "rules[0]")),
    ],
)
def test_rule_is_a_reason_only_of_calls_that_it_did_not_forward(outcome: CallOutcome, parts: tuple[str, ...]) -> None:
    assert why(outcome, "type", "reason", "rules[0]") == parts
    assert why(outcome, "", "reason", "") == ("reason",)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("a\x00b\x1bc", "a b c"),
        ("\ud800x", " x"),
        ("grün", "grün"),
        ("\u202eevil", " evil"),
    ],
)
def test_text_is_cleaned_for_every_database(text: str, kept: str) -> None:
    assert cleaned(text) == kept


def test_long_text_is_truncated() -> None:
    assert len(cleaned("x" * 5_000)) == LONGEST_NAME
    assert cleaned("x" * 5_000).endswith("…")


def test_names_of_principals_stay_different() -> None:
    plain = ["ann", "acme/ann", "https://login.example/v2#\u202exyz", "x" * LONGEST_KEY]
    assert [as_key(name) for name in plain] == plain
    odd = ["a\x00b", "a?b", "a\ud800b", "a\ud801b", "y" * 2_000, "y" * 2_001, "ü\x00"]
    keys = [as_key(name) for name in odd]
    assert len(set(keys)) == len(odd)
    assert all(len(key) <= LONGEST_KEY and "\x00" not in key and key.encode() for key in keys)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (TaskState.COMPLETED, CallOutcome.OK),
        (TaskState.FAILED, CallOutcome.FAILED),
        (TaskState.CANCELLED, CallOutcome.CANCELLED),
        (TaskState.REJECTED, CallOutcome.REJECTED),
        (TaskState.EXPIRED, CallOutcome.EXPIRED),
        (TaskState.OUTCOME_UNKNOWN, CallOutcome.OUTCOME_UNKNOWN),
        (TaskState.RUNNING, None),
    ],
)
def test_outcome_follows_the_state_of_a_task(state: TaskState, outcome: CallOutcome | None) -> None:
    assert outcome_of_task(a_task(state)) is outcome


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.FAILED])
def test_result_with_is_error_is_a_tool_error_in_every_state(state: TaskState) -> None:
    ended = TaskOutcome(OutcomeKind.RESULT, b"{}", is_error=True, size=2)
    assert outcome_of_task(a_task(state, outcome=ended)) is CallOutcome.TOOL_ERROR


def test_row_of_a_failed_task_has_its_error_type_and_times() -> None:
    body = b'{"code":-32000,"message":"x","data":{"error_type":"upstream_timeout"}}'
    task = a_task(
        TaskState.FAILED,
        outcome=TaskOutcome(OutcomeKind.ERROR, body),
        status_message="took too long",
        executed=Executed.MAYBE,
        last_attempt=Attempt(2, 1, "", "files", 1_500),
        sends=2,
        asked=True,
        rerun_of="tg_before",
        approval_id="ap_1",
        params_rest=b'{"_meta":{"traceparent":"00-' + TRACE.encode() + b'-00f067aa0ba902b7-01"}}',
    )
    row = row_of_task(task, 9_999, approved_by="bob", with_reason=True)
    assert (row.outcome, row.error_type, row.executed) == (CallOutcome.FAILED, "upstream_timeout", "maybe")
    assert (row.accepted_ms, row.sent_ms, row.ended_ms, row.attempts) == (1_000, 1_500, 3_000, 2)
    assert (row.reason, row.approved_by, row.approval_id) == ("took too long", "bob", "ap_1")
    assert (row.asked, row.parent, row.trace, row.client) == (True, "tg_before", TRACE, "agent")
    assert (row.size_in, row.size_out, row.tenant) == (12, len(body), "acme")


def test_reason_is_left_out_where_it_is_encrypted_at_rest() -> None:
    task = a_task(TaskState.FAILED, status_message="secret", finished_ms=None, outcome=None)
    row = row_of_task(task, 9_999, with_reason=False)
    assert (row.reason, row.ended_ms, row.executed, row.size_out) == ("", 9_999, "no", 0)


def test_task_that_was_sent_without_evidence_may_have_been_executed() -> None:
    task = a_task(TaskState.CANCELLED, last_attempt=Attempt(1, 1, "", "files", 1_500), sends=1)
    assert row_of_task(task, 0, with_reason=True).executed == "maybe"


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (State.DENIED, CallOutcome.REJECTED),
        (State.INVALID, CallOutcome.REJECTED),
        (State.EXPIRED, CallOutcome.EXPIRED),
        (State.CANCELLED, CallOutcome.CANCELLED),
        (State.OPEN, None),
        (State.APPROVED, None),
        (State.USED, None),
    ],
)
def test_held_request_without_a_task_leaves_a_row_if_it_will_not_run(state: State, outcome: CallOutcome | None) -> None:
    asked = open_approval(
        "ap_1", Workflow("ops"), "rules[0]", Binding("ann", "files", "rm", "sha256:1", "sha256:2", "rev", 0), 1_000
    )
    row = row_of_held(replace(asked, state=state), 5_000)
    assert (row.outcome if row is not None else None) is outcome
    if row is not None:
        assert (row.caller, row.tool, row.rule, row.executed) == ("ann", "rm", "rules[0]", "no")
        assert (row.accepted_ms, row.ended_ms, row.approval_id) == (1_000, 5_000, "ap_1")


@pytest.mark.parametrize(
    ("body", "error_type"),
    [
        (b'{"code":-32602,"message":"x"}', "jsonrpc -32602"),
        (b'{"code":1,"data":{"error_type":"policy_drift"}}', "policy_drift"),
        (b'{"code":1,"data":"text"}', "unknown"),
        (b"not json", "unknown"),
        (None, "jsonrpc 0"),
    ],
)
def test_error_type_is_read_from_the_error(body: bytes | None, error_type: str) -> None:
    assert error_type_of(body) == error_type


@pytest.mark.parametrize(
    ("meta", "trace"),
    [
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, ""),
        ({"traceparent": "00-zz-1-01"}, ""),
        ({"traceparent": "x" * 500}, ""),
        ({"traceparent": 5}, ""),
        ({}, ""),
    ],
)
def test_trace_id_is_read_from_traceparent(meta: dict[str, Any], trace: str) -> None:
    assert trace_of({"_meta": meta}) == trace
    assert trace_in(msgspec.json.encode({"_meta": meta})) == trace


def test_params_that_are_no_object_have_no_trace() -> None:
    assert trace_in(b'["traceparent"]') == ""


def test_words_are_letters_and_digits_in_lower_case() -> None:
    assert words_of("Files__Delete-file/v2 files") == ("files", "delete", "file", "v2")
    assert words_of("'\" OR 1=1; --*") == ("or", "1")
    assert search_words(" ".join(f"w{n}" for n in range(50))) == tuple(f"w{n}" for n in range(8))


def test_digest_of_a_filter_depends_on_each_of_its_members() -> None:
    filters = [
        HistoryFilter(),
        HistoryFilter(tenant="acme"),
        HistoryFilter(caller="acme"),
        HistoryFilter(outcomes=frozenset({CallOutcome.OK})),
        HistoryFilter(outcomes=frozenset({CallOutcome.OK, CallOutcome.FAILED})),
        HistoryFilter(since_ms=1),
    ]
    assert len({wanted.digest() for wanted in filters}) == len(filters)
    assert HistoryFilter(outcomes=frozenset({CallOutcome.FAILED, CallOutcome.OK})).digest() == filters[4].digest()
