"""Which plain calls leave a row, how denials are summed, and which rows are deleted first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskgate.core.history.keeping import MAX_KINDS, SUM_MS, EqualRows, Sample, Summed, to_delete
from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind


def denial(at_ms: int, tool: str = "rm", caller: str = "ann") -> HistoryRow:
    return HistoryRow(
        kind=RowKind.DENIAL,
        outcome=CallOutcome.DENIED,
        caller=caller,
        tool=tool,
        error_type="policy_denied",
        rule="no rm",
        accepted_ms=at_ms,
        ended_ms=at_ms,
    )


def test_sample_keeps_the_first_calls_of_each_second() -> None:
    sample = Sample()
    assert [sampled(sample, 1 + n / 10, 3) for n in range(5)] == [True, True, True, False, False]
    assert sampled(sample, 2.0, 3)
    assert sampled(sample, 0.5, 3), "a clock that was set back begins a new second"
    assert not sampled(Sample(), 1.0, 0)


def sampled(sample: Sample, ended_s: float, per_second: int) -> bool:
    """Whether a call that ended well at this time is kept."""
    return sample.keeps(CallOutcome.OK, 0.01, ended_s, asked=False, per_second=per_second)


def test_bad_slow_and_questioned_calls_are_always_kept() -> None:
    sample = Sample()
    assert not sample.keeps(CallOutcome.OK, 0.01, 1.0, asked=False, per_second=0)
    assert sample.keeps(CallOutcome.OK, 0.01, 1.0, asked=True, per_second=0)
    assert sample.keeps(CallOutcome.OK, 2.5, 1.0, asked=False, per_second=0)
    assert sample.keeps(CallOutcome.TOOL_ERROR, 0.01, 1.0, asked=False, per_second=0)


def taken(sums: EqualRows, now_ms: int = 0) -> list[HistoryRow]:
    """New rows of sums; those of other tests do not grow."""
    return sums.take(now_ms, lambda at_ms: at_ms + 7).new


def test_first_denial_is_written_at_once_and_equal_ones_are_summed() -> None:
    sums = EqualRows()
    assert sums.add(denial(0)) == denial(0)
    assert [sums.add(denial(at)) for at in (10, 20, 30)] == [None, None, None]
    assert sums.add(denial(40, tool="other")) is not None
    summed = sums.take(100, lambda at_ms: at_ms + 7)
    assert [(row.number, row.count, row.accepted_ms, row.ended_ms) for row in summed.new] == [(37, 3, 10, 30)]
    assert summed.grown == []
    assert sums.take(200, lambda at_ms: at_ms + 7) == Summed([], [])
    assert sums.add(denial(300)) is None
    summed = sums.take(SUM_MS + 40, lambda at_ms: at_ms + 7)
    assert [(row.number, row.count, row.accepted_ms, row.ended_ms) for row in summed.grown] == [(37, 4, 10, 300)]
    assert summed.new == []
    assert sums.add(denial(SUM_MS + 50)) is not None, "a new time begins with a row"


def test_equal_denials_of_different_clients_are_kept_apart() -> None:
    sums = EqualRows()
    rows = [replace(denial(0), client=client, trace="4bf9") for client in ("editor", "agent", "editor")]
    assert [sums.add(row) for row in rows] == [*rows[:2], None]
    assert [(row.client, row.trace, row.count) for row in taken(sums)] == [("editor", "", 1)]


def test_sums_end_when_the_clock_is_set_back() -> None:
    sums = EqualRows()
    sums.add(denial(1_000_000))
    sums.add(denial(1_000_001))
    assert [row.count for row in taken(sums)] == [1]
    assert sums.add(denial(1)) is not None


def test_rows_of_a_caller_are_dropped_when_its_data_is_erased() -> None:
    sums = EqualRows()
    for caller in ("ann", "eve", "ann", "eve"):
        sums.add(denial(0, caller=caller))
    sums.forget("eve")
    assert [row.caller for row in taken(sums)] == ["ann"]


def test_many_different_denials_are_summed_by_caller_and_then_together() -> None:
    sums = EqualRows()
    written = [sums.add(denial(0, tool=f"guess-{n}")) for n in range(MAX_KINDS * 3)]
    kept = [row for row in written if row is not None]
    assert len(kept) == MAX_KINDS + 1
    assert (kept[-1].caller, kept[-1].tool) == ("ann", "")
    others = [sums.add(denial(0, caller=f"caller-{n}")) for n in range(MAX_KINDS * 3)]
    assert sum(row is not None for row in others) == MAX_KINDS
    assert [row.caller for row in others if row is not None][-1] == ""
    assert sum(row.count for row in taken(sums)) + len(kept) + MAX_KINDS == MAX_KINDS * 6


def test_caller_with_the_most_rows_loses_first() -> None:
    assert to_delete({"loud": 900, "quiet": 100}, 500, 1_000) == {"loud": 500}
    assert to_delete({"loud": 900, "quiet": 100}, 500, 200) == {"loud": 200}
    assert to_delete({"a": 300, "b": 300, "c": 10}, 410, 1_000) == {"a": 100, "b": 100}
    assert to_delete({"a": 3}, 5, 1_000) == {}
    assert to_delete({"a": 3}, 0, 1_000) == {"a": 3}
    assert to_delete({}, -5, 1_000) == {}


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 500), max_size=8), st.integers(0, 500))
def test_no_caller_loses_rows_while_another_has_more(rows_of: dict[str, int], maximum: int) -> None:
    lost = to_delete(rows_of, maximum, 1_000_000)
    left = {caller: count - lost.get(caller, 0) for caller, count in rows_of.items()}
    assert sum(left.values()) == min(sum(rows_of.values()), maximum)
    assert all(left[caller] >= max(left.values()) - 1 for caller in lost)
