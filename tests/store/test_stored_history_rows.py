"""The stored form of a row of history, which gateways of the version before read and write on the same store."""

from __future__ import annotations

import msgspec

from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind
from taskgate.store.operations.history import history_columns, history_row_from

ROW = HistoryRow(
    kind=RowKind.TASK,
    outcome=CallOutcome.FAILED,
    number=7,
    task_id="tg_1",
    caller="acme/ann",
    scope="default",
    server="files",
    tool="read",
    client="agent",
    error_type="upstream_timeout",
    rule="rules[0]",
    approved_by="bob",
    generation="stateful",
    trace="4bf9",
    accepted_ms=1,
    sent_ms=2,
    ended_ms=3,
    reason="late",
    executed="maybe",
    attempts=4,
    approval_id="ap_1",
    asked=True,
    size_in=5,
    size_out=6,
    digest="sha256:0",
    parent="tg_0",
    count=8,
)
STORED = b'["stateful","4bf9",1,2,3,"late","maybe",4,"ap_1",true,5,6,"sha256:0","tg_0",8]'
SEARCHED = (
    "task",
    "failed",
    "tg_1",
    "acme/ann",
    "default",
    "files",
    "read",
    "agent",
    "upstream_timeout",
    "rules[0]",
    "bob",
)


def test_members_that_are_not_searched_are_a_list_in_a_fixed_order() -> None:
    assert history_columns(ROW, 7)["doc"].startswith(STORED[:-1])
    assert history_row_from((7, *SEARCHED, STORED)) == ROW


def test_row_of_an_earlier_version_is_shorter_and_of_a_later_one_longer() -> None:
    earlier = history_row_from((7, *SEARCHED, b'["stateful","4bf9",1,2,3]'))
    assert (earlier.ended_ms, earlier.attempts, earlier.count) == (3, 0, 1)
    later = msgspec.json.encode([*msgspec.json.decode(history_columns(ROW, 7)["doc"]), "unknown"])
    assert history_row_from((7, *SEARCHED, later)) == ROW
