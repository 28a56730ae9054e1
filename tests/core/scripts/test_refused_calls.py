"""Refused calls in the record of a script: the first are kept, the others counted."""

from __future__ import annotations

from taskgate.core.scripts.record import MAX_REFUSED, RefusedCall, ScriptRecord


def refused(first: int, count: int) -> list[RefusedCall]:
    return [RefusedCall(number, "shop__buy", 1, "policy_denied") for number in range(first, first + count)]


def test_first_refused_calls_are_kept_and_the_others_counted() -> None:
    record = ScriptRecord()
    assert record.with_refused([]) is record
    some = record.with_refused(refused(0, MAX_REFUSED - 1))
    assert (len(some.refused), some.more_refused) == (MAX_REFUSED - 1, 0)
    more = some.with_refused(refused(500, 4))
    assert (len(more.refused), more.more_refused) == (MAX_REFUSED, 3)
    assert more.refused[-1].number == 500
    assert more.with_refused(refused(600, 2)).more_refused == 5
