"""The quick check of large responses accepts only what the strict parser accepts, and most of what servers write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core import checked_parts, wire
from taskgate.core.checked_parts import members_of_response
from taskgate.core.errors import TaskgateError
from taskgate.core.sliced_reading import finished

DEPTH, NODES = 6, 40
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of a few bytes are separated as large ones are."""
    monkeypatch.setattr(checked_parts, "PART_BYTES", 8)
    monkeypatch.setattr(checked_parts, "STEP_BYTES", 16)


def separated(body: bytes, depth: int = DEPTH, nodes: int = NODES) -> dict[str, bytes] | None:
    members = finished(members_of_response(body, depth, nodes))
    return {name: bytes(raw) for name, raw in members.items()} if members is not None else None


def is_valid(body: bytes) -> bool:
    try:
        wire.parse_strictly(body, DEPTH, NODES)
    except TaskgateError:
        return False
    return True


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


@given(values, st.integers(0, 10_000), st.sampled_from([b"", b'"', b"\\", b",", b"}", b"]", b"{", b"\xff", b" ", b"1"]))
def test_broken_response_is_accepted_only_if_strict_parser_accepts_it(value: Any, where: int, instead: bytes) -> None:
    whole = compact({"jsonrpc": "2.0", "id": 7, "result": value})
    at = where % len(whole)
    for body in (whole, whole[:at] + instead + whole[at + 1 :]):
        found = separated(body)
        if found is not None:
            assert is_valid(body)
            assert found == {name: bytes(raw) for name, raw in wire.members_of(body).items()}


def test_usual_response_is_accepted() -> None:
    tools = [{"name": f"tool-{number}", "inputSchema": {"type": "object"}} for number in range(5)]
    body = compact({"jsonrpc": "2.0", "id": 7, "result": {"tools": tools}})
    found = separated(body)
    assert found is not None
    assert found["result"] == compact({"tools": tools})


@pytest.mark.parametrize(
    "result",
    [
        b'{"tools":[{"a":1,"a":2}]}',
        b'{"tools":[],"tools":[{"a":111111}]}',
        b'{"a":[NaN,11111]}',
        b'{"a":["\\ud800"]}',
        b'{"a":["\xff2345678"]}',
        b'{"a":[[[[[[[1]]]]]]]}',
        b'{"a":[' + b"1," * NODES + b"1]}",
        b'{"a": [1,2,3,4,5]}',
        b'{"\\u0061":[1,2,3,4,5]}',
    ],
    ids=[
        "key twice",
        "outer key twice",
        "NaN",
        "surrogate",
        "no UTF-8",
        "too deep",
        "too many",
        "spaces",
        "escaped key",
    ],
)
def test_response_that_is_ambiguous_or_beyond_limits_is_left_to_the_scan(result: bytes) -> None:
    assert separated(b'{"jsonrpc":"2.0","id":7,"result":%b}' % result) is None


def test_only_responses_with_a_result_are_separated() -> None:
    for other in ({"method": "a", "params": {}}, {"error": {"code": 1, "message": "no"}}, {"result": 1, "method": "a"}):
        assert separated(compact({"jsonrpc": "2.0", "id": 7, **other})) is None
    assert separated(b"[1,2,3,4,5,6,7,8]") is None
    assert separated(b"1234567890") is None


def test_nested_large_arrays_are_separated_a_limited_number_of_times() -> None:
    nested = compact({"jsonrpc": "2.0", "id": 7, "result": json.loads("[" * 30 + '"12345678"' + "]" * 30)})
    assert separated(nested, depth=100, nodes=1_000) is None


def test_documents_beyond_the_size_are_left_to_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    body = compact({"jsonrpc": "2.0", "id": 7, "result": ["12345678"]})
    assert separated(body) is not None
    monkeypatch.setattr(checked_parts, "MAX_BYTES", len(body) - 1)
    assert separated(body) is None


def test_the_event_loop_runs_between_parts() -> None:
    steps = sum(1 for _ in members_of_response(compact({"jsonrpc": "2.0", "id": 7, "result": [10**9] * 20}), 10, 1_000))
    assert steps > 5
