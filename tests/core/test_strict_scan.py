"""Parsing in slices accepts and refuses exactly what parsing at once does."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core import checked_parts, strict_scan, wire
from taskgate.core.errors import TaskgateError
from taskgate.core.sliced_reading import (
    batch_in_slices,
    elements_in_slices,
    finished,
    members_in_slices,
    message_in_slices,
    reads_quickly,
    result_in_slices,
    value_in_slices,
)
from taskgate.core.strict_scan import StrictScan


def last_of(slices: Generator[None, None, Any]) -> tuple[Any, int]:
    """The return value, and the number of slices."""
    count = 1
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, count
        count += 1


def in_slices(body: bytes, max_depth: int = 8, max_nodes: int = 50) -> wire.Message:
    message: wire.Message = last_of(message_in_slices(body, max_depth, max_nodes))[0]
    return message


def outcome(read: Any, body: bytes) -> Any:
    try:
        return read(body)
    except TaskgateError as problem:
        return problem.error_type


def at_once(body: bytes) -> wire.Message:
    """The message as it is parsed in slices, which does not decode a result."""
    return msgspec.structs.replace(wire.MessageReader(8, 50).read(body), result=None)


def assert_equal_reading(body: bytes) -> None:
    """In slices with the quick check of compact responses, by the scan alone, and at once."""
    expected = outcome(at_once, body)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checked_parts, "PART_BYTES", 8)
        assert outcome(in_slices, body) == expected, body
        patched.setattr(checked_parts, "MAX_BYTES", 0)
        assert outcome(in_slices, body) == expected, body


@pytest.fixture(autouse=True, params=[1, 13, strict_scan.SLICE_BYTES])
def slice_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small slices end everywhere: in escapes, in spaces, between two bytes of one character."""
    monkeypatch.setattr(strict_scan, "SLICE_BYTES", request.param + 12)
    monkeypatch.setattr(strict_scan, "SLICE_TOKENS", 3)
    monkeypatch.setattr(strict_scan, "_PIECE_BYTES", 2 * request.param)
    monkeypatch.setattr(strict_scan, "_TEXT_BYTES", request.param)


def test_members_and_elements_are_found_by_position() -> None:
    def scanned(body: bytes) -> StrictScan:
        scan = StrictScan(body, 8, 50)
        while not scan.step():
            pass
        return scan

    found = scanned(b' { "a" : [1, {"x": 2}] ,"b":"y\\n", "c": {} } ')
    assert {name: bytes(raw) for name, raw in found.members().items()} == {
        "a": b'[1, {"x": 2}]',
        "b": b'"y\\n"',
        "c": b"{}",
    }
    assert found.elements() == []
    listed = scanned(b' [ {"x": [1, 2]} , "y" ,3,[] ] ')
    assert [bytes(raw) for raw in listed.elements()] == [b'{"x": [1, 2]}', b'"y"', b"3", b"[]"]
    assert listed.members() == {}


ODD = [
    b"", b" ", b"{", b"}", b"[}", b'{"a":1]', b"[]", b"null", b'"a"', b"1", b'{"jsonrpc":"2.0"}', b"\xef\xbb\xbf{}", b"{} x",
    b"{},{}",
    b'{"jsonrpc":"2.0","id":1,"result":{}}', b' \n{ "jsonrpc" : "2.0" ,\t"id":1, "result" : [ ] }\r\n ',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}', b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"\\u0061":2}}',
    b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}', b'{"jsonrpc":"2.0","id":1,"result":NaN}',
    b'{"jsonrpc":"2.0","id":1,"result":-Infinity}', b'{"jsonrpc":"2.0","id":1,"result":"\\ud83d\\ude00"}',
    b'{"jsonrpc":"2.0","id":1,"result":"\\ud83d"}', b'{"jsonrpc":"2.0","id":1,"result":"\\ude00\\ud83d"}',
    b'{"jsonrpc":"2.0","id":1,"result":"\\\\ud83d"}', b'{"jsonrpc":"2.0","id":1,"result":"\\x"}',
    b'{"jsonrpc":"2.0","id":1,"result":"\\u12"}', b'{"jsonrpc":"2.0","id":1,"result":"a\nb"}',
    b'{"jsonrpc":"2.0","id":1,"result":"\xff"}', b'{"jsonrpc":"2.0","id":1,"result":"\xc3\xa9"}',
    b'{"jsonrpc":"2.0","id":1,"result":01}', b'{"jsonrpc":"2.0","id":1,"result":1.}', b'{"jsonrpc":"2.0","id":1,"result":-}',
    b'{"jsonrpc":"2.0","id":1,"result":1e5}', b'{"jsonrpc":"2.0","id":1,"result":123456789012345678901234567890}',
    b'{"jsonrpc":"2.0","id":1,"result":' + b"1" * 4301 + b"}", b'{"jsonrpc":"2.0","id":1,"result":-' + b"1" * 4300 + b"}",
    b'{"jsonrpc":"2.0","id":1,"result":[1,]}', b'{"jsonrpc":"2.0","id":1,"result":{"a":1,}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"a"}}', b'{"jsonrpc":"2.0","id":1,"result":[}', b'{"jsonrpc":"2.0","id":1,"result":{]}',
    b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 7 + b"]" * 7 + b"}",
    b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 8 + b"]" * 8 + b"}",
    b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 9 + b"]" * 9 + b"}",
    b'{"jsonrpc":"2.0","id":1,"result":[' + b",".join([b"1"] * 46) + b"]}",
    b'{"jsonrpc":"2.0","id":1,"result":[' + b",".join([b"1"] * 47) + b"]}",
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}', b'{"jsonrpc":"2.0","id":1,"error":{},"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":12345678901234567890123}}', b'{"jsonrpc":"2.0","method":"m"}',
    b'{"jsonrpc":"1.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":null,"result":{}}', b'{"jsonrpc":"2.0","id":1.5,"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":true,"b":[false,null,"x"]},"extra":{"y":[1]}}',
]  # fmt: skip


@pytest.mark.parametrize("body", ODD)
def test_odd_documents_are_read_alike(body: bytes) -> None:
    assert_equal_reading(body)


IN_LONG_STRINGS = [
    b"", b'\\"', b"\\\\", b'\\\\\\"', b'\\\\"', b"\\n\\t", b"\\\\n", b"\\r\\/\\b", b"\\u00fc", b"\\ud83d\\ude00", b"\\ud83d",
    b"\\ud83d\\n", b"\\x", b"\\", b"\\\\\\", b"\n", b"\x00", b"\x1f", b"\x7f", b"\xff", b"\xc3\xa9", b"\xc3", b'"', b'","a":"',
    b'"}}',
]  # fmt: skip


def assert_equal_reading_of_long_string(text: bytes) -> None:
    assert_equal_reading(b'{"jsonrpc":"2.0","id":1,"result":{"text":"' + text + b'"}}')
    assert_equal_reading(b'{"jsonrpc":"2.0","id":1,"result":{"text":"' + text)


@pytest.mark.parametrize("rest", [b"y" * 20, b""], ids=["in the middle", "at the end"])
def test_long_strings_are_read_alike(rest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_scan, "_LONG_STRING", 15)
    for odd in IN_LONG_STRINGS:
        for shift in range(3):
            assert_equal_reading_of_long_string(b"x" * (20 + shift) + odd + rest)


def test_strings_of_several_slices_are_read_alike() -> None:
    size = max(strict_scan._LONG_STRING, strict_scan.SLICE_BYTES)
    for piece in (b"more", b"\\n", b"\\\\", b'\\"\\\\', b"\\u00fc", b"\xc3\xa9"):
        assert_equal_reading_of_long_string(b"x" + piece * (2 * size // len(piece)))
    assert_equal_reading_of_long_string(b"\\\\" * size + b"\\")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_results_are_read_alike(value: Any, ascii_only: bool, indent: int | None) -> None:
    message = {"jsonrpc": "2.0", "id": "x", "result": value}
    assert_equal_reading(json.dumps(message, ensure_ascii=ascii_only, indent=indent).encode())


@given(values, st.integers(0, 10_000), st.sampled_from([b"", b'"', b"\\", b",", b"}", b"\x00", b"\xff", b" ", b"1"]))
def test_broken_results_are_read_alike(value: Any, where: int, instead: bytes) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "result": value}).encode()
    at = where % len(body)
    assert_equal_reading(body[:at] + instead + body[at + 1 :])


@pytest.mark.parametrize("document", [b'{"a": [1, {"b": "c\\u00e9"}], "d": null}', b"[1.5, -2, true]", b'"text"', b"7"])
def test_part_of_a_message_is_read_in_slices(document: bytes) -> None:
    assert last_of(value_in_slices(document))[0] == wire.parse_strictly(document)


def test_megabytes_of_space_are_read_in_slices() -> None:
    body = b'{"jsonrpc":"2.0","id":1,' + b" " * (3 * strict_scan.SLICE_BYTES) + b'"result":{}}'
    message, steps = last_of(message_in_slices(body, 10, 100))
    assert steps > 3
    assert bytes(message.raw_result) == b"{}"


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_params_are_decoded_alike(value: Any, ascii_only: bool, indent: int | None) -> None:
    message = {"method": "m", "params": {"a": value, "b": [value, {"c": value}]}, "jsonrpc": "2.0", "id": "x"}
    body = json.dumps(message, ensure_ascii=ascii_only, indent=indent).encode()
    assert in_slices(body, 20, 1000) == wire.MessageReader(20, 1000).read(body)


@given(values, st.integers(0, 10_000), st.sampled_from([b"", b'"', b"\\", b",", b"}", b"\x00", b"\xff", b" ", b"1"]))
def test_broken_params_are_read_alike(value: Any, where: int, instead: bytes) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"a": value}}).encode()
    at = where % len(body)
    assert_equal_reading(body[:at] + instead + body[at + 1 :])


LARGE = {
    "objects": [{}] * 4000,
    "keys": {f"k{n}": n for n in range(4000)},
    "nested": [[n, {"a": [n] * 40}] for n in range(100)],
    "large in large": {
        "long": ["x" * 40_000, {"y": ["z" * 40_000] * 3}],
        "": {"": [1.5] * 9000},
        'q"\\': [None] * 9000,
    },
    "long numbers": [12345678901234567890123] * 3000,
    "one text": "x" * 100_000,
    "many characters": ["ü\n\U0001f600" * 20_000, {"😀" * 30_000: "\\" * 40_000}],
}
SMALL = {"long": ["x" * 50, {"y": ["ü\n" * 9] * 3}], "": {"": [1.5] * 9}, 'q"\\': [None] * 9}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(SMALL, id="small"),
        *(pytest.param(value, id=name, marks=pytest.mark.unmeasured) for name, value in LARGE.items()),
    ],
)
@pytest.mark.parametrize(("indent", "ascii_only"), [(None, True), (1, False)])
def test_large_params_are_decoded_in_pieces(value: Any, indent: int | None, ascii_only: bool) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": value, "b": 1}}
    body = json.dumps(message, indent=indent, ensure_ascii=ascii_only).encode()
    read, slices = last_of(message_in_slices(body, 20, 50_000))
    assert read == wire.MessageReader(20, 50_000).read(body)
    assert slices > 2


def _scanned(scan: StrictScan) -> None:
    while not scan.step():
        pass


def test_document_with_too_many_values_is_refused_before_it_is_scanned() -> None:
    inside = rb'"a,b\",\\",'
    for value, commas in ((b"{},", 1), (b'"k",', 1), (b'"a,,,,b",', 1), (inside, 1)):
        enough = 60
        scan = StrictScan(b"[" + value * enough + b"0]", 8, enough * commas)
        with pytest.raises(wire.MalformedJson, match="more than"):
            _scanned(scan)
        assert scan._at == 0, value
        _scanned(StrictScan(b"[" + value * enough + b"0]", 8, enough * commas + 2))


def test_batches_are_read_alike() -> None:
    one = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": [1, {"b": 2}]}}
    batches: list[Any] = [[one], [one] * 9, [one, 5], [], [one] * (wire.MAX_BATCH + 1), {}]
    for messages in batches:
        body = json.dumps(messages, indent=1).encode()
        reader = wire.MessageReader(8, 10_000)
        read = outcome(lambda text: last_of(batch_in_slices(text, 8, 10_000))[0], body)
        assert read == outcome(reader.read_batch, body)


def test_small_documents_are_parsed_in_one_step() -> None:
    assert reads_quickly(b"[" + b"{}," * 5_000 + b"0]")
    assert reads_quickly(b'"' + b"x" * 200_000 + b'"')
    assert not reads_quickly(b'"' + b"x" * 300_000 + b'"')
    assert not reads_quickly(b"[" + b"{}," * 8_000 + b"0]")
    assert not reads_quickly(b"[" + b"[" * 9_000 + b"]" * 9_000)
    assert not reads_quickly(b"[" + b"0," * 9_000 + b"0]")


def test_a_large_member_that_was_edited_away_stays_away() -> None:
    large = json.dumps("x" * 20_000)
    body = f'{{"a":{large},"b":{{"c":{large}}}}}'.encode()
    scan = StrictScan(body, 10, 100)
    while not scan.step():
        pass
    small_copy = scan.with_placeholders("nonce")
    assert small_copy.refill(small_copy.small) == body
    kept = wire.join({"b": wire.members_of(small_copy.small)["b"]})
    assert json.loads(small_copy.refill(kept)) == {"b": {"c": "x" * 20_000}}


def test_small_members_stay_where_they_are() -> None:
    body = b'{"small":[1,2],"large":[' + b",".join([b"1"] * 10_000) + b"]}"
    scan = StrictScan(body, 10, 20_000)
    while not scan.step():
        pass
    small_copy = scan.with_placeholders("nonce")
    assert json.loads(small_copy.small) == {"small": [1, 2], "large": ["nonce1"]}
    assert small_copy.refill(small_copy.small) == body


DEEP = b'{"a":' * 3_000 + b"1" + b"}" * 3_000


def test_response_beyond_the_limits_is_found_with_its_result_unread() -> None:
    result = b'{"tools":[' + DEEP + b',{"name":"x"}]}'
    body = b'{"jsonrpc":"2.0","id":7,"result":%b}' % result
    with pytest.raises(wire.BeyondLimits) as problem:
        wire.MessageReader().read(body)
    assert "json_depth" in problem.value.reason
    message = finished(result_in_slices(body))
    assert message is not None
    assert (message.id, message.raw_result) == (b"7", wire.Raw(result))
    assert finished(result_in_slices(b'{"jsonrpc":"2.0","method":"x","params":%b}' % DEEP)) is None


def test_members_and_elements_of_any_depth_are_found() -> None:
    listed = b"[%b,2]" % DEEP
    members = finished(members_in_slices(b'{"tools":%b,"more":1}' % listed))
    assert members == {"tools": wire.Raw(listed), "more": wire.Raw(b"1")}
    assert finished(elements_in_slices(listed)) == [wire.Raw(DEEP), wire.Raw(b"2")]


@pytest.mark.unmeasured
def test_large_documents_beyond_the_limits_are_read_in_slices() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[%b]}}' % b",".join([b'{"name":"x"}'] * 60_000)
    with pytest.raises(wire.BeyondLimits) as problem:
        wire.MessageReader().read(body)
    assert "json_nodes" in problem.value.reason
    steps = sum(1 for _ in result_in_slices(body))
    assert steps > 20
    members = b'{"a":[%b]}' % b",".join([b'{"name":"x"}'] * 6_000)
    assert sum(1 for _ in members_in_slices(members)) > 2
    assert sum(1 for _ in elements_in_slices(members[5:-1])) > 2
