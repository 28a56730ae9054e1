"""Each event reaches its caller once, in order, or is counted as lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.event_log import PER_REPLY, EventBatch, EventLog
from taskgate.core.events import Event, EventKind, by_server


def event(number: int, *, durable: bool = False, at_ms: int = 0, server: str = "s") -> Event:
    return Event(f"{number:026d}", EventKind.NOTIFICATION.value, server, at_ms, {}, number if durable else 0)


def log_of(*numbers: int, **kind: Any) -> EventLog:
    log = EventLog()
    for number in numbers:
        log.add(event(number, **kind))
    return log


def numbers(batch: EventBatch) -> list[int]:
    return [int(entry.id) for entry in batch.events]


def test_an_event_is_taken_once() -> None:
    log = log_of(1, 2)
    assert numbers(log.take()) == [1, 2]
    assert not log.take()
    assert not log.has_new


def test_undelivered_events_are_repeated_in_the_next_reply_with_the_same_id() -> None:
    log = log_of(1, 2)
    log.undo(log.take())
    log.add(event(3))
    assert numbers(log.take()) == [1, 2, 3]


def test_an_undelivered_older_reply_is_repeated_after_a_delivered_newer_one() -> None:
    log = log_of(1)
    lost = log.take()
    log.add(event(2))
    assert numbers(log.take()) == [2]
    log.undo(lost)
    assert numbers(log.take()) == [1]


def test_a_confirmed_batch_is_not_undone() -> None:
    log = log_of(1)
    batch = log.take()
    log.confirm(batch)
    log.undo(batch)
    assert not log.has_new


def test_the_durable_position_stops_before_unconfirmed_events() -> None:
    log = log_of(1, 2, durable=True)
    first = log.take()
    log.add(event(3, durable=True))
    second = log.take()
    assert log.confirm(second) == {}
    assert log.confirm(first) == {"": 3}


def test_events_in_memory_do_not_move_the_durable_position() -> None:
    log = log_of(1, durable=True)
    log.add(event(2))
    assert log.confirm(log.take()) == {"": 1}


def test_eviction_before_delivery_is_reported_once_with_its_count() -> None:
    log = EventLog(kept=2)
    for number in range(5):
        log.add(event(number))
    batch = log.take()
    assert (numbers(batch), batch.lost) == ([3, 4], 3)
    assert not log.take()


def test_eviction_after_delivery_loses_nothing() -> None:
    log = EventLog(kept=2)
    for number in range(5):
        log.add(event(number))
        log.confirm(log.take())
    assert log.lost == 0


def test_an_undelivered_batch_that_was_evicted_counts_as_lost() -> None:
    log = EventLog(kept=1)
    log.add(event(1))
    batch = log.take()
    log.add(event(2))
    log.undo(batch)
    again = log.take()
    assert (numbers(again), again.lost) == ([2], 1)


def test_an_undelivered_lost_marker_is_repeated() -> None:
    log = EventLog(kept=1)
    log.add(event(1))
    log.add(event(2))
    log.undo(log.take())
    assert log.take().lost == 1


def test_an_evicted_durable_event_does_not_hold_the_position_back() -> None:
    log = EventLog(kept=1)
    log.add(event(1, durable=True))
    log.add(event(2, durable=True))
    assert log.confirm(log.take()) == {"": 2}


def test_old_events_are_evicted() -> None:
    log = EventLog(kept_ms=1000)
    log.add(event(1, at_ms=0))
    log.add(event(2, at_ms=900))
    log.trim(1500)
    batch = log.take()
    assert (numbers(batch), batch.lost) == ([2], 1)


def test_changed_limits_apply_at_the_next_read() -> None:
    log = log_of(1, 2, 3)
    log.adopt(2, 1000)
    log.trim(0)
    batch = log.take()
    assert (numbers(batch), batch.lost) == ([2, 3], 1)
    log.trim(2000)
    assert not log.has_after(event(1).id)


def test_events_after_an_id_are_repeated_and_count_as_delivered() -> None:
    log = log_of(1, 2, 3)
    log.confirm(log.take())
    log.add(event(4))
    assert log.has_after(event(1).id)
    assert numbers(log.take_after(event(1).id)) == [2, 3, 4]
    assert not log.has_new


def test_an_unknown_id_is_placed_by_its_time() -> None:
    log = log_of(10, 20)
    assert numbers(log.take_after(event(15).id)) == [20]
    assert not log.has_after(event(20).id)


def test_a_reply_contains_a_limited_number_of_events() -> None:
    log = log_of(*range(PER_REPLY + 5))
    assert len(log.take().events) == PER_REPLY
    assert numbers(log.take()) == list(range(PER_REPLY, PER_REPLY + 5))


def test_events_delivered_by_an_earlier_process_are_kept_but_not_new() -> None:
    log = EventLog()
    log.add(event(1), handed_over=True)
    assert not log.has_new
    assert log.has_after("0" * 26)
    assert log.last_id == event(1).id


def test_since_looks_back_to_a_position() -> None:
    log = log_of(1)
    position = log.count
    assert log.since(position) == ()
    log.add(event(2))
    assert [int(entry.id) for entry in log.since(position)] == [2]
    assert EventLog().last_id is None


def test_events_are_grouped_by_server_in_order() -> None:
    groups = by_server((event(1, server="a"), event(2, server="b"), event(3, server="a")))
    assert [(group["server"], len(group["events"])) for group in groups] == [("a", 2), ("b", 1)]


@given(st.lists(st.sampled_from(["add", "take", "confirm", "undo"]), max_size=60), st.integers(1, 8))
def test_under_any_order_each_event_arrives_once_or_is_counted_as_lost(steps: list[str], kept: int) -> None:
    log, added = EventLog(kept), 0
    flying: list[EventBatch] = []
    arrived: list[int] = []
    lost = 0
    for step in steps:
        if step == "add":
            added += 1
            log.add(event(added))
        elif step == "take":
            batch = log.take()
            if batch:
                flying.append(batch)
        elif flying and step == "confirm":
            batch = flying.pop(0)
            log.confirm(batch)
            arrived += numbers(batch)
            lost += batch.lost
        elif flying:
            log.undo(flying.pop(0))
    for batch in flying:
        log.undo(batch)
    last = log.take()
    arrived += numbers(last)
    lost += last.lost
    assert len(arrived) == len(set(arrived))
    assert len(arrived) + lost == added


def test_events_deleted_before_the_log_began_are_reported_as_lost() -> None:
    log = EventLog()
    log.missed(3)
    assert log.take().lost == 3
