"""Budgets: results are cut but stay JSON, rates are arithmetic, and slots go around fairly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskgate.core.budgets import (
    MIN_OUTPUT_BYTES,
    TRUNCATED_META,
    BucketLevel,
    FairQueue,
    QueuePlace,
    TokenBucket,
    cut_string,
    share,
    take,
    truncate_result,
)
from taskgate.core.errors import CallerError


def result(*blocks: Any, **more: Any) -> bytes:
    return json.dumps({"content": list(blocks), **more}).encode()


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def test_a_result_within_its_limit_is_not_touched() -> None:
    raw = b'{ "content" : [] , "unknown": 123456789012345678901234567890 }'
    assert truncate_result(raw, 2000) is raw


def test_a_long_text_is_cut_and_says_so() -> None:
    cut = truncate_result(result(text("a" * 50, annotations={"audience": ["user"]}), text("b" * 9000), text("c")), 2000)
    assert len(cut) <= 2000
    value = json.loads(cut)
    first, second, marker = value["content"]
    assert first == text("a" * 50, annotations={"audience": ["user"]})
    assert 500 < len(second["text"]) < 2000
    assert set(second["text"]) == {"b"}
    assert marker["text"].startswith("[This result was cut by the gateway: it had")
    assert value["_meta"][TRUNCATED_META]["limitBytes"] == 2000


def test_small_fields_survive_and_large_ones_are_named() -> None:
    raw = result(
        text("x" * 5000), isError=True, _meta={"k": 1}, structuredContent={"rows": ["y" * 5000]}, big="z" * 3000, q=7
    )
    value = json.loads(truncate_result(raw, 3000))
    assert value["isError"] is True
    assert value["q"] == 7
    assert value["_meta"]["k"] == 1
    assert value["structuredContent"]["taskgate_notice"]["kind"] == "cut"
    assert value["structuredContent"]["taskgate_notice"]["original_bytes"] == len(raw)
    assert "Left out: big, structuredContent." in value["content"][-1]["text"]


def test_structured_content_is_kept_where_it_fits() -> None:
    value = json.loads(truncate_result(result(text("x" * 9000), structuredContent={"rows": [1]}), 3000))
    assert value["structuredContent"] == {"rows": [1]}


@pytest.mark.parametrize(
    "raw",
    [
        result({"type": "image", "data": "A" * 9000, "mimeType": "image/png"}),
        result({"type": "text", "text": 5, "x": "a" * 9000}),
        result({"type": "text", "text": "short", "x": "a" * 9000}),
        result(5, "a" * 9000),
        json.dumps({"content": 5, "x": "a" * 9000}).encode(),
        json.dumps(["a" * 9000]).encode(),
        b"not json" * 1000,
        result(text("a" * 9000), _meta=5),
        result(text("\u0001" * 9000)),
        result(**{f"k{i}": "v" * 600 for i in range(40)}),
        result(**{"é" * 400 + str(i): "v" for i in range(9)}, **{"x" * 400 + str(i): "v" for i in range(9)}),
    ],
)
def test_whatever_cannot_be_cut_is_left_out_whole(raw: bytes) -> None:
    cut = truncate_result(raw, 2000)
    assert len(cut) <= 2000
    assert "cut by the gateway" in json.loads(cut)["content"][-1]["text"]


_json = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
_blocks = st.lists(
    st.builds(text, st.text(min_size=0, max_size=3000))
    | st.builds(lambda n: {"type": "image", "data": "A" * n}, st.integers(0, 3000)),
    max_size=5,
)


@given(_blocks, st.dictionaries(st.text(max_size=10), _json, max_size=4), st.integers(0, 4000), st.booleans())
def test_a_cut_result_is_json_within_its_limit(
    blocks: list[Any], more: dict[str, Any], limit: int, ascii_only: bool
) -> None:
    raw = json.dumps({**more, "content": blocks}, ensure_ascii=ascii_only).encode("utf-8", "replace")
    cut = truncate_result(raw, limit)
    assert len(cut) <= max(limit, MIN_OUTPUT_BYTES)
    assert isinstance(json.loads(cut)["content"], list)


@pytest.mark.parametrize(
    ("value", "ascii_only", "size"),
    [
        ("short", False, 80),
        ("\\" * 9000, False, 9001),
        ("\\" * 9000, False, 9002),
        ("x" + "\\" * 3, False, 6),
        ("a\U0001f600b", True, 10),
        ("a\u00fcb", True, 6),
        ("\u00fc" * 9, False, 8),
        ("\u00fc" * 9, False, 9),
    ],
)
def test_a_string_is_cut_between_two_characters(value: str, ascii_only: bool, size: int) -> None:
    assert_cut_between_two_characters(value, ascii_only, size)


@given(st.text(), st.booleans(), st.integers(0, 80))
def test_any_string_is_cut_between_two_characters(value: str, ascii_only: bool, size: int) -> None:
    assume(ascii_only or value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value))
    assert_cut_between_two_characters(value, ascii_only, size)


def assert_cut_between_two_characters(value: str, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    cut = cut_string(text, size)
    assert len(cut) <= max(2, size)
    kept = json.loads(cut)
    assert value.startswith(kept)
    # Nothing that would have fitted is left out.
    if len(kept) < len(value):
        longer = json.dumps(value[: len(kept) + 1], ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        assert len(longer) > size


@pytest.mark.parametrize("block", [b'{"type":"text","text":%b}', b'{"type":"image","text":"%b"}', b"[%b]", b"%b"])
def test_only_text_is_cut(block: bytes) -> None:
    value = json.loads(truncate_result(b'{"content":[%b,1]}' % (block % (b"5" * 4000)), 2000))
    assert [shown["text"][:22] for shown in value["content"]] == ["[This result was cut b"]


def test_a_bucket_starts_full_refills_and_says_how_long_to_wait() -> None:
    bucket = TokenBucket(per_second=10, burst=2)
    level, wait = take(bucket, None, 100.0)
    assert (level, wait) == (BucketLevel(1, 100.0), 0.0)
    level, wait = take(bucket, level, 100.0)
    assert wait == 0.0
    level, wait = take(bucket, level, 100.0)
    assert wait == pytest.approx(0.1)
    level, wait = take(bucket, level, 100.0 + wait)
    assert wait == pytest.approx(0.0)
    level, _ = take(bucket, level, 200.0)
    assert level.tokens == pytest.approx(1.0)


def test_odd_clocks_and_rates_do_no_harm() -> None:
    level, wait = take(TokenBucket(10, 1), BucketLevel(0.0, 100.0), 50.0)
    assert level.tokens == 0.0
    assert wait == pytest.approx(0.1)
    assert take(TokenBucket(0, 1), BucketLevel(0.0, 0.0), 5.0)[1] == float("inf")
    assert take(TokenBucket(1, 2), BucketLevel(0.0, 0.0), 0.0, cost=9)[1] == pytest.approx(2.0)
    assert take(TokenBucket(1, 2), None, 0.0, cost=9) == (BucketLevel(-7.0, 0.0), 0.0)


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=60), st.integers(1, 10), st.floats(0.5, 50))
def test_no_sequence_gets_more_than_burst_plus_rate(gaps: list[float], burst: int, rate: float) -> None:
    now, level, passed = 0.0, None, 0
    for gap in gaps:
        now += gap
        level, wait = take(TokenBucket(rate, burst), level, now)
        passed += wait == 0.0
    assert passed <= burst + rate * now + 1e-6


def test_slots_go_to_those_who_have_the_fewest() -> None:
    queue = FairQueue(slots=2)
    assert [queue.enter("greedy", f"g{i}") for i in range(4)] == [
        QueuePlace.RUNS,
        QueuePlace.RUNS,
        QueuePlace.WAITS,
        QueuePlace.WAITS,
    ]
    assert queue.enter("modest", "m0") is QueuePlace.WAITS
    assert queue.leave("greedy") == ["m0"]
    assert (queue.running, queue.waiting) == (2, 2)
    assert queue.leave("greedy") == ["g2"]
    assert queue.leave("modest") == ["g3"]
    assert queue.leave("greedy") == []
    assert queue.leave("greedy") == []
    assert queue.running == 0


def test_equals_take_turns() -> None:
    queue = FairQueue(slots=1)
    queue.enter("x", "x0")
    for name in ("a", "b"):
        for i in range(2):
            queue.enter(name, f"{name}{i}")
    order = [queue.leave("x")[0]]
    for _ in range(3):
        order += queue.leave(str(order[-1])[0])
    assert order == ["a0", "b0", "a1", "b1"]


def test_waiting_has_limits_and_says_that_nothing_ran() -> None:
    queue = FairQueue(slots=1, max_waiting=3, max_waiting_per_caller=2)
    queue.enter("a", 0)
    queue.enter("a", 1)
    queue.enter("a", 2)
    with pytest.raises(CallerError) as caught:
        queue.enter("a", 3)
    assert (caught.value.error_type, caught.value.executed) == ("overloaded", "no")
    queue.enter("b", 4)
    with pytest.raises(CallerError):
        queue.enter("c", 5)


def test_a_waiting_call_may_give_up_once() -> None:
    queue = FairQueue(slots=1)
    queue.enter("a", 0)
    queue.enter("b", 1)
    queue.enter("b", 2)
    assert queue.abandon("b", 1)
    assert not queue.abandon("b", 1)
    assert queue.abandon("b", 2)
    assert not queue.abandon("nobody", 1)
    assert queue.waiting == 0


def test_more_slots_admit_who_waits_and_fewer_stop_nobody() -> None:
    queue = FairQueue(slots=1)
    queue.enter("a", 0)
    queue.enter("a", 1)
    assert queue.resize(2) == [1]
    assert queue.resize(1) == []
    assert queue.running == 2
    queue.enter("b", 2)
    assert queue.leave("a") == []
    assert queue.leave("a") == [2]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "leave", "abandon"])), max_size=60))
def test_any_order_of_happenings_keeps_the_limit_and_loses_no_ticket(steps: list[tuple[str, str]]) -> None:
    queue = FairQueue(slots=2)
    running: list[tuple[str, int]] = []
    waiting: dict[int, str] = {}
    for number, (caller, step) in enumerate(steps):
        mine = [entry for entry in running if entry[0] == caller]
        if step == "enter":
            if queue.enter(caller, number) is QueuePlace.RUNS:
                running.append((caller, number))
            else:
                waiting[number] = caller
        elif step == "leave" and mine:
            running.remove(mine[0])
            running.extend((waiting.pop(ticket), ticket) for ticket in queue.leave(caller))  # type: ignore
        elif step == "abandon" and caller in waiting.values():
            ticket = next(t for t, c in waiting.items() if c == caller)
            assert queue.abandon(caller, ticket)
            del waiting[ticket]
        assert queue.running == len(running) <= 2
        assert queue.waiting == len(waiting)
        assert not waiting or len(running) == 2


def test_a_line_says_beforehand_whether_it_is_full() -> None:
    queue = FairQueue(slots=1, max_waiting=1)
    assert not queue.is_full_for("a")
    queue.enter("a", 0)
    assert not queue.is_full_for("b")
    queue.enter("b", 1)
    assert queue.is_full_for("c")


def test_who_leaves_without_a_slot_takes_nobodys_place_away() -> None:
    queue = FairQueue(1)
    assert queue.enter("ann", 1) is QueuePlace.RUNS
    assert queue.enter("bob", 2) is QueuePlace.WAITS
    assert queue.leave("carol") == []
    assert (queue.running, queue.waiting) == (1, 1)
    assert queue.leave("ann") == [2]
    assert (queue.running, queue.waiting) == (1, 0)


def test_other_limits_on_waiting_hold_at_once() -> None:
    queue = FairQueue(1)
    queue.enter("ann", 1)
    queue.enter("ann", 2)
    assert not queue.is_full_for("bob")
    queue.limit_waiting(1, 1, 1)
    assert queue.is_full_for("bob")


def test_a_free_slot_goes_to_the_tenant_with_the_fewest_running() -> None:
    queue = FairQueue(slots=3)
    for number, caller in enumerate(("big/a", "big/b", "small/c")):
        assert queue.enter(caller, number) is QueuePlace.RUNS
    # A caller of the large tenant who has nothing running stands first in the line; the small tenant has fewer.
    assert queue.enter("big/d", "d") is QueuePlace.WAITS
    assert queue.enter("small/c", "c") is QueuePlace.WAITS
    assert queue.leave("big/a") == ["d"]
    assert queue.leave("big/b") == ["c"]
    assert queue.enter("big/e", "e") is QueuePlace.WAITS
    assert queue.enter("https://issuer.example#ann", "ann") is QueuePlace.WAITS
    assert queue.leave("small/c") == ["ann"]


def test_one_tenant_does_not_fill_the_line() -> None:
    queue = FairQueue(slots=1, max_waiting=10, max_waiting_per_caller=10, max_waiting_per_tenant=2)
    queue.enter("big/a", 0)
    for caller in ("big/a", "big/b"):
        queue.enter(caller, caller)
    assert queue.is_full_for("big/c")
    assert not queue.is_full_for("small/c")
    assert queue.abandon("big/b", "big/b")
    assert not queue.is_full_for("big/c")


def test_a_call_that_runs_already_takes_a_slot_even_beyond_the_limit() -> None:
    queue = FairQueue(slots=1)
    assert queue.enter("ann", "first") is QueuePlace.RUNS
    queue.run_at_once("bob")
    assert queue.running == 2
    assert queue.enter("ann", "second") is QueuePlace.WAITS
    assert queue.leave("bob") == []
    assert queue.leave("ann") == ["second"]


@pytest.mark.parametrize("limit", range(1, 30))
@pytest.mark.parametrize("among", range(1, 9))
def test_the_shares_of_all_gateways_are_the_limit_or_one_each(limit: int, among: int) -> None:
    shares = [share(limit, place, among) for place in range(among)]
    assert sum(shares) == max(limit, among)
    assert max(shares) - min(shares) <= 1
