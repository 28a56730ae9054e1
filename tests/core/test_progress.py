"""Progress: bursts are forwarded, floods are rate-limited, and the last report is always delivered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.progress import ProgressFlow, ProgressUpdate
from taskgate.core.token_bucket import TokenBucket


def test_a_burst_passes_and_then_ten_a_second() -> None:
    flow, sent, now = ProgressFlow(), 0, 0.0
    for number in range(1000):
        passed, _ = flow.offer(ProgressUpdate(float(number)), now)
        sent += passed is not None
        now += 0.01
    assert 20 + 95 <= sent <= 20 + 101


def test_the_latest_delayed_update_is_sent() -> None:
    flow = ProgressFlow(TokenBucket(10, 1))
    assert flow.offer(ProgressUpdate(1), 0.0) == (ProgressUpdate(1), None)
    nothing, when = flow.offer(ProgressUpdate(2), 0.0)
    assert nothing is None
    assert when is not None
    assert abs(when - 0.1) < 1e-9
    flow.offer(ProgressUpdate(3, 10, "three"), 0.05)
    assert flow.due(0.11) == (ProgressUpdate(3, 10, "three"), None)
    assert flow.due(5.0) == (None, None)


def test_values_that_do_not_increase_pass_unchanged() -> None:
    flow = ProgressFlow()
    for update in (ProgressUpdate(5), ProgressUpdate(5, None, "again"), ProgressUpdate(4)):
        assert flow.offer(update, 1.0) == (update, None)
    heartbeat = flow.heartbeat("working", 2.0)
    assert heartbeat is not None
    assert heartbeat.progress > 5


def test_the_last_update_is_sent_at_the_end_and_nothing_after_it() -> None:
    flow = ProgressFlow(TokenBucket(1, 1))
    flow.offer(ProgressUpdate(1), 0.0)
    flow.offer(ProgressUpdate(2), 0.0)
    flow.offer(ProgressUpdate(3), 0.0)
    assert flow.end() == ProgressUpdate(3)
    assert flow.end() is None
    assert flow.offer(ProgressUpdate(9), 9.0) == (None, None)
    assert flow.heartbeat("still there", 9.0) is None


def test_a_heartbeat_stays_above_the_upstreams_last_value_and_never_below() -> None:
    flow = ProgressFlow(TokenBucket(1, 1))
    first = flow.heartbeat("working", 0.0)
    assert first is not None
    assert (first.progress, first.message) == (0.001, "working")
    assert flow.offer(ProgressUpdate(0.5), 5.0)[0] == ProgressUpdate(0.5)
    again = flow.heartbeat("working", 10.0)
    assert again is not None
    assert again.progress > 0.5
    assert flow.heartbeat("working", 10.0) is None, "the rate holds for us too"
    assert flow.end() is None, "a sign of life is not held"
    held = ProgressFlow(TokenBucket(1, 1))
    held.offer(ProgressUpdate(1), 0.0)
    held.offer(ProgressUpdate(2), 0.0)
    assert held.heartbeat("working", 0.0) is None
    huge = ProgressFlow()
    huge.offer(ProgressUpdate(1e300), 0.0)
    assert huge.heartbeat("working", 1.0) is None


@given(st.lists(st.tuples(st.floats(0, 0.3), st.floats(-10, 100)), max_size=80))
def test_updates_keep_their_order_and_end_with_the_last(steps: list[tuple[float, float]]) -> None:
    flow, now, sent = ProgressFlow(TokenBucket(10, 3)), 0.0, []
    for gap, value in steps:
        now += gap
        passed, _ = flow.offer(ProgressUpdate(value), now)
        sent += [passed.progress] if passed else []
    last = flow.end()
    sent += [last.progress] if last else []
    offered = iter([value for _, value in steps])
    assert all(value in offered for value in sent), "an update was repeated or overtook another"
    assert not steps or sent[-1] == steps[-1][1]
