"""Budgets: truncated results stay valid JSON, rates are exact, and slots are shared fairly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskgate.core.catalog.truncate_result import MIN_OUTPUT_BYTES, TRUNCATED_META, cut_string, truncate_result
from taskgate.core.token_bucket import BucketLevel, TokenBucket, share, take


def result(*blocks: Any, **more: Any) -> bytes:
    return json.dumps({"content": list(blocks), **more}).encode()


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def test_a_result_within_its_limit_is_unchanged() -> None:
    raw = b'{ "content" : [] , "unknown": 123456789012345678901234567890 }'
    assert truncate_result(raw, 2000) is raw


def test_a_long_text_is_truncated_with_a_marker() -> None:
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
def test_content_that_cannot_be_truncated_is_omitted(raw: bytes) -> None:
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
    # Nothing that fits within the limit is omitted.
    if len(kept) < len(value):
        longer = json.dumps(value[: len(kept) + 1], ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        assert len(longer) > size


@pytest.mark.parametrize("block", [b'{"type":"text","text":%b}', b'{"type":"image","text":"%b"}', b"[%b]", b"%b"])
def test_only_text_is_cut(block: bytes) -> None:
    value = json.loads(truncate_result(b'{"content":[%b,1]}' % (block % (b"5" * 4000)), 2000))
    assert [shown["text"][:22] for shown in value["content"]] == ["[This result was cut b"]


def test_a_bucket_starts_full_refills_and_returns_the_time_to_wait() -> None:
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


def test_odd_clocks_and_rates_are_handled() -> None:
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


@pytest.mark.parametrize("limit", range(1, 30))
@pytest.mark.parametrize("among", range(1, 9))
def test_the_shares_of_all_gateways_add_up_to_the_limit_or_are_one_each(limit: int, among: int) -> None:
    shares = [share(limit, place, among) for place in range(among)]
    assert sum(shares) == max(limit, among)
    assert max(shares) - min(shares) <= 1
