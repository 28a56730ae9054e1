"""Parsing and writing JSON-RPC envelopes: strict for every peer, and unchanged for unknown content."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.raised import raises_error

from taskgate.core import wire
from taskgate.core.errors import TaskgateError
from taskgate.core.wire import InvalidMessage, Kind, MalformedJson, Message

READER = wire.MessageReader()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_a_request_keeps_the_exact_bytes_of_its_id_and_params() -> None:
    message = READER.read(b'{"jsonrpc": "2.0", "id":  7, "method": "x", "params": {"a" : 12345678901234567890123}}')
    assert message.kind is Kind.REQUEST
    assert (message.id, message.method) == (b"7", "x")
    assert message.params == {"a": 12345678901234567890123}
    assert bytes(message.raw_params or b"") == b'{"a" : 12345678901234567890123}'


def test_a_message_without_an_id_is_a_notification() -> None:
    assert READER.read(b'{"jsonrpc":"2.0","method":"n"}').kind is Kind.NOTIFICATION


def test_results_and_errors_are_responses() -> None:
    answered = READER.read(b'{"jsonrpc":"2.0","id":"a","result":{"x":1}}')
    assert (answered.kind, bytes(answered.raw_result or b"")) == (Kind.RESPONSE, b'{"x":1}')
    failed = READER.read(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}')
    assert (failed.kind, failed.id) == (Kind.RESPONSE, None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting"),
        (b'{"a":1,"a":2}', "'a' appears twice"),
        (b'{"x":{"b":1,"b":1}}', "'b' appears twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b"[" * 70 + b"]" * 70, "64 levels"),
        (b"[" * 100_000, "64 levels"),
        (b"[" + b"1," * 100_001 + b"1]", "100000 values"),
        (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
    ],
)
def test_json_that_two_parsers_may_read_differently_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedJson) as refused:
        READER.read(body)
    assert reason in refused.value.message


def test_a_surrogate_pair_and_an_escaped_backslash_are_accepted() -> None:
    assert wire.parse_strictly(b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert wire.parse_strictly(b'{"a":"\\\\ud800"}') == {"a": "\\ud800"}


def test_many_small_objects_within_the_limits_are_accepted() -> None:
    body = json.dumps([{"a": [1]}] * 100).encode()
    assert len(wire.parse_strictly(body)) == 100


@pytest.mark.parametrize(
    ("spelled", "known_as"),
    [
        (rb'"d\u00e9"', '"dé"'.encode()),
        (rb'"a\/b"', b'"a/b"'),
        (rb'"\u0041"', b'"A"'),
        (rb'"q\"\n"', rb'"q\"\n"'),
        (b"-0", b"0"),
    ],
)
def test_an_id_is_the_same_however_it_is_spelled(spelled: bytes, known_as: bytes) -> None:
    message = READER.read(b'{"jsonrpc":"2.0","id":' + spelled + b',"method":"x"}')
    assert message.id == known_as == wire.encode(json.loads(spelled))


def test_the_limits_are_those_of_the_reader_and_may_change() -> None:
    body = b'{"jsonrpc":"2.0","method":"n","params":{"a":[[[1,2,3]]]}}'
    reader = wire.MessageReader(max_depth=5, max_nodes=10)
    assert reader.read(body).method == "n"
    reader.adopt(4, 10)
    with raises_error("parse_error", "4", "limits.json_depth"):
        reader.read(body)
    reader.adopt(5, 9)
    with raises_error("parse_error", "9", "limits.json_nodes"):
        reader.read(body)


def test_a_message_accepted_with_higher_limits_can_be_parsed_again_in_parts() -> None:
    body = b'{"jsonrpc":"2.0","method":"n","params":{"a":' + b"[" * 190 + b"]" * 190 + b"}}"
    message = wire.MessageReader(max_depth=200).read(body)
    assert wire.parse_strictly(bytes(message.raw_params or b"")) == message.params
    with raises_error("parse_error", "256", "limits.json_depth"):
        wire.parse_strictly(b"[" * 300 + b"]" * 300)


@pytest.mark.parametrize(
    ("body", "reason", "echoed"),
    [
        (b"[]", "object", None),
        (b"1", "object", None),
        (b'{"id":1,"method":"x"}', '"jsonrpc"', b"1"),
        (b'{"jsonrpc":"1.0","id":1,"method":"x"}', '"jsonrpc"', b"1"),
        (b'{"jsonrpc":"2.0","id":1}', "neither", b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', "method must be a string", b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","result":{}}', "may not hold", b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":[]}', "params must be an object", b"1"),
        (b'{"jsonrpc":"2.0","id":null,"method":"x"}', "id must be", None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', "id must be", None),
        (b'{"jsonrpc":"2.0","id":true,"method":"x"}', "id must be", None),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', "not both", b"1"),
        (b'{"jsonrpc":"2.0","result":{}}', "id of a response", None),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"y"}}', "an error is an object", b"1"),
    ],
)
def test_an_invalid_message_is_refused_with_its_id_if_readable(body: bytes, reason: str, echoed: bytes | None) -> None:
    with pytest.raises(InvalidMessage) as refused:
        READER.read(body)
    assert reason in refused.value.message
    assert refused.value.message_id == echoed


def test_a_batch_is_read_message_by_message() -> None:
    body = b' [{"jsonrpc":"2.0","id":1,"method":"a"}, {"jsonrpc":"2.0","method":"b"}]'
    assert wire.is_batch(body)
    assert [message.method for message in READER.read_batch(body)] == ["a", "b"]
    assert not wire.is_batch(b"{}")


def test_only_a_response_is_accepted_where_one_is_expected() -> None:
    response = READER.read_response(b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}')
    assert response is not None
    assert (response.id, bytes(response.raw_result or b"")) == (b"1", b'{"a":1}')
    assert READER.read_response(b'{"jsonrpc":"2.0","id":1,"method":"ping"}') is None
    assert READER.read_response(b"<html>") is None
    assert wire.MessageReader(max_depth=2).read_response(b'{"jsonrpc":"2.0","id":1,"result":{"a":[1]}}') is None


@pytest.mark.parametrize("depth", range(1, 12))
def test_a_short_message_is_as_deep_as_the_limit_at_most(depth: int) -> None:
    """The shortest documents of each depth, which are read without counting their brackets if none can be too deep."""
    nested = b"[" * depth + b"1" + b"]" * depth
    response = b'{"jsonrpc":"2.0","id":1,"result":%b}' % nested
    request = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":%b}}' % nested
    for limit in range(2, 14):
        reader = wire.MessageReader(max_depth=limit)
        assert (reader.read_simple_response(response, b"1") is not None) is (depth + 1 <= limit)
        if depth + 2 <= limit:
            assert reader.read(request).method == "x"
        else:
            with raises_error("parse_error", "limits.json_depth"):
                reader.read(request)


IN_FULL = wire.MessageReader(max_nodes=1_000)
"""Reads every message in full, because short ones could exceed this limit."""
USUAL = (
    b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a"}]}}',
    b'{"result":{"a":[1,2.5,null]},"jsonrpc":"2.0","id":7}',
    b'{"jsonrpc":"2.0","id":7,"result":{"a":1},"id":8}',
    b'{"jsonrpc":"2.0","id":7,"result":{"a":1,"a":2}}',
    b'{"jsonrpc":"2.0","id":7,"result":{"a":1},"error":{"code":1,"message":""}}',
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{}}}',
    b'{"method":"tools/call","params":{"name":"a"},"jsonrpc":"2.0","id":"x"}',
    b'{"jsonrpc":"2.0","id":7,"method":"ping","extra":1}',
    b'{"jsonrpc":"1.0","id":7,"method":"ping","params":{}}',
    b'{"jsonrpc":"2.0","id":7,"method":1,"params":{}}',
    b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}',
    b'{"jsonrpc":"2.0","id":null,"method":"ping","params":{}}',
)


def outcome(read: Callable[[bytes], Message | None], body: bytes) -> object:
    try:
        message = read(body)
    except TaskgateError as problem:
        return type(problem), problem.message
    if message is None:
        return None
    raw = [bytes(part) if part is not None else None for part in (message.raw_params, message.raw_result)]
    return message.kind, message.id, message.method, message.params, message.result, raw


def both_ways(body: bytes) -> None:
    assert outcome(READER.read, body) == outcome(IN_FULL.read, body)
    expected = outcome(IN_FULL.read_response, body)
    assert outcome(lambda text: READER.read_simple_response(text, b"7"), body) == expected
    assert outcome(lambda text: READER.read_simple_response(text, b"8"), body) == expected


@pytest.mark.parametrize("body", USUAL)
def test_messages_in_the_usual_form_are_read_as_in_full(body: bytes) -> None:
    both_ways(body)
    both_ways(body.replace(b":", b": "))


def test_the_usual_form_does_not_exceed_the_limits() -> None:
    deep = b'{"jsonrpc":"2.0","id":7,"result":%b}' % (b"[" * 70 + b"]" * 70)
    assert READER.read_simple_response(deep, b"7") is None
    with pytest.raises(wire.BeyondLimits):
        READER.read(deep)


@given(st.sampled_from(USUAL), st.integers(0, 90), st.integers(0, 6), st.binary(max_size=6))
def test_almost_usual_messages_are_read_as_in_full(body: bytes, begin: int, length: int, other: bytes) -> None:
    both_ways(body[:begin] + other + body[begin + length :])


def test_a_simple_response_is_within_the_limits() -> None:
    short = b'{"jsonrpc":"2.0","id":7,"result":{"a":[1,2]}}'
    assert wire.MessageReader(max_nodes=100).read_simple_response(short, b"7") is not None
    assert wire.MessageReader(max_nodes=5).read_simple_response(short, b"7") is None
    large = b'{"jsonrpc":"2.0","id":7,"result":{"a":"%b"}}' % (b"x" * wire.LARGE_BYTES)
    assert READER.read_simple_response(large, b"7") is None


LONG = b"x" * wire.COUNTED_BYTES
USUAL_LONG = (
    b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"%b"}],"isError":true}}' % LONG,
    b'{"result":{"content":[{"type":"text","text":"%b"},{"type":"text","text":"%b"}]},"jsonrpc":"2.0","id":7}'
    % (LONG, LONG),
)


@pytest.mark.parametrize("body", USUAL_LONG)
def test_long_responses_in_the_usual_form_are_read_as_in_full(body: bytes) -> None:
    assert outcome(lambda text: READER.read_simple_response(text, b"7"), body) == outcome(IN_FULL.read_response, body)
    assert READER.read_simple_response(body, b"8") is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{"a":1,"text":"%b","a":2}}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":{"%b":1,"%b":2}}' % (LONG, LONG),
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b"},"error":{}}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b"},"id":8}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b\xff"}}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b\x01"}}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b","a":NaN}}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b","a":%b1%b}}' % (LONG, b"[" * 63, b"]" * 63),
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b","a":[1%b]}}' % (LONG, b",1" * wire.COUNTED_BYTES),
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b"}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":"%b}' % LONG,
        b'{"jsonrpc":"2.0","id":7,"result":}' + LONG + b"}",
    ],
)
def test_an_unusual_long_response_is_not_simple(body: bytes) -> None:
    assert READER.read_simple_response(body, b"7") is None


@given(st.sampled_from(USUAL_LONG), st.integers(0, 90), st.integers(0, 6), st.binary(max_size=6), st.booleans())
def test_almost_usual_long_responses_are_read_as_in_full(
    body: bytes, place: int, length: int, other: bytes, at_end: bool
) -> None:
    begin = len(body) - place if at_end else place
    changed = body[:begin] + other + body[begin + length :]
    simple = outcome(lambda text: READER.read_simple_response(text, b"7"), changed)
    assert simple is None or simple == outcome(IN_FULL.read_response, changed)


@pytest.mark.parametrize("body", [b"{}", b"[]"])
def test_an_empty_batch_or_none_at_all_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        READER.read_batch(body)


def test_messages_are_written_around_relayed_bytes() -> None:
    assert json.loads(wire.success(b'"i"', b'{"a": 1}')) == {"jsonrpc": "2.0", "id": "i", "result": {"a": 1}}
    assert json.loads(wire.failure(None, b'{"code":1,"message":""}'))["id"] is None
    assert json.loads(wire.request(b"3", b'"m"', None)) == {"jsonrpc": "2.0", "id": 3, "method": "m"}
    assert json.loads(wire.request(b"3", b'"m"', b"{}"))["params"] == {}
    assert json.loads(wire.notification("n", None)) == {"jsonrpc": "2.0", "method": "n"}
    assert json.loads(wire.notification("n", b'{"x":1}'))["params"] == {"x": 1}


@given(st.binary(max_size=200))
def test_no_bytes_from_outside_raise_anything_but_our_own_errors(body: bytes) -> None:
    with contextlib.suppress(TaskgateError):
        READER.read(body)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_members_taken_apart_and_joined_are_equal(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    assert json.loads(wire.join(wire.members_of(body))) == value


def _reference(body: bytes) -> Any:
    """The reference for strict parsing, written as simply as possible."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key appears twice")
        return dict(pairs)

    value = json.loads(body.decode("utf-8"), object_pairs_hook=once, parse_constant=lambda _name: 1 / 0)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


WORDS = rb"""{ } [ ] , : "a" "b" "a":1 "\u0061":2 1 -0 1e5 1.50 0.1 123456789012345678901234567890 null true NaN "\ud800" """
PIECES = st.sampled_from([*WORDS.split(), b" ", b'"\xc3\xa9"', b'"\xed\xa0\x80"', b'"\n"'])


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_the_fast_parser_accepts_nothing_that_the_slow_one_refuses(body: bytes) -> None:
    try:
        value = wire.parse_strictly(body)
    except MalformedJson:
        return
    assert repr(value) == repr(_reference(body))


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_messages_in_any_valid_formatting_are_parsed(value: dict[str, Any]) -> None:
    for body in (
        wire.encode(value),
        json.dumps(value).encode(),
        json.dumps(value, indent=1, ensure_ascii=False).encode(),
    ):
        assert wire.parse_strictly(body) == value


@pytest.mark.parametrize("filling", ["", "x" * 5000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_is_limited_however_long_the_text_around_it_is(filling: str, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    for levels, fine in ((62, True), (63, False)):
        inner = opening * levels + '"' + filling + '"' + closing * levels
        body = f'{{"deep":[{inner}]}}'.encode()
        if fine:
            assert wire.parse_strictly(body, 64)
        else:
            with raises_error("parse_error", "64", "limits.json_depth"):
                wire.parse_strictly(body, 64)


def test_brackets_in_a_long_text_are_no_depth() -> None:
    assert wire.parse_strictly(wire.encode({"text": "{[" * 2000, "list": [[], {}] * 40}))["text"].startswith("{[")


LARGE = "x" * 2 * wire.COUNTED_BYTES
"""A text that makes a message large enough for `wire._cut_out`."""


@given(JSON, st.permutations(["jsonrpc", "id", "method", "params", "extra"]), st.booleans(), st.integers() | st.text())
def test_large_message_in_any_order_and_spacing_keeps_exact_bytes(
    value: Any, order: list[str], compact: bool, message_id: int | str
) -> None:
    """The large member is cut out of the body where that is possible, and parsed where it is not."""
    for name in ("params", "result"):
        members: dict[str, Any] = {"jsonrpc": "2.0", "id": message_id, name: {"large": LARGE, "value": value}}
        members |= {"method": "tools/call"} if name == "params" else {}
        keys = [key if key != "params" else name for key in order]
        written = {key: members[key] for key in keys if key in members}
        separators = (",", ":") if compact else (", ", ": ")
        body = json.dumps(written, ensure_ascii=False, separators=separators).encode()
        message = READER.read(body)
        raw = message.raw_params if name == "params" else message.raw_result
        decoded = message.params if name == "params" else message.result
        assert raw is not None
        assert bytes(raw) == bytes(wire.members_of(body)[name])
        assert decoded == members[name]


@pytest.mark.parametrize("order", ["first", "last"])
def test_large_message_of_usual_form_is_cut_out(order: str) -> None:
    rest = {"jsonrpc": "2.0", "id": 7}
    large = {"result": {"text": LARGE}}
    value: dict[str, Any] = {**large, **rest} if order == "first" else {**rest, **large}
    cut = wire._cut_out(value, wire.encode(value))
    assert cut is not None
    assert bytes(cut["result"]) == wire.encode(large["result"])


@pytest.mark.parametrize(
    ("usual", "instead"),
    [(b'"result":', b'"result": '), (b"}}", b"} }"), (b"}}", b'},"extra":1}'), (b'{"jsonrpc"', b'{ "jsonrpc"')],
    ids=["space before", "space after", "another member", "space at the beginning"],
)
def test_large_message_is_parsed_if_other_bytes_are_around_the_member(usual: bytes, instead: bytes) -> None:
    body = wire.encode({"jsonrpc": "2.0", "id": 7, "result": {"text": LARGE}}).replace(usual, instead)
    assert wire._cut_out(json.loads(body), body) is None
    assert bytes(READER.read(body).raw_result or b"") == wire.encode({"text": LARGE})


def test_large_request_of_usual_form_is_cut_out() -> None:
    params = {"text": LARGE}
    value = {"jsonrpc": "2.0", "id": 7, "method": "m", "params": params}
    cut = wire._cut_out(value, wire.encode(value))
    assert cut is not None
    assert bytes(cut["params"]) == wire.encode(params)


def test_large_notification_keeps_exact_bytes() -> None:
    message = READER.read(wire.encode({"jsonrpc": "2.0", "method": "n", "params": {"text": LARGE}}))
    assert message.kind is Kind.NOTIFICATION
    assert bytes(message.raw_params or b"") == wire.encode({"text": LARGE})


FILL = b"a long text " * 500


@pytest.mark.parametrize(
    "result",
    [
        b'{"a":"%b","a":1}',
        b'{"%b":1,"%b":2}',
        b'{"a":"%b\n"}',
        b'{"a":"%b\xff"}',
        b'{"a":"%b\\ud800"}',
        b'{"a":"%b","b":NaN}',
        b'{"a":"%b",}',
        b'{"a":"%b}',
    ],
)
def test_ambiguity_beside_or_in_a_long_string_is_refused(result: bytes) -> None:
    with pytest.raises(MalformedJson):
        wire.parse_strictly(result.replace(b"%b", FILL))


@pytest.mark.parametrize(
    "result",
    [
        b'{"a":"%b","b":[1,2.5,null,true,"short"]}',
        b'{"%b1":1,"%b2":2}',
        b'{ "a" : "%b" }',
        b'{"a":"%b\\n","b":"\\u0041"}',
        b'{"a":"%b \xc3\xa9"}',
        b"[" + b",".join([b'"%b"'] * 200) + b"]",
    ],
)
def test_document_with_long_strings_is_read_as_by_the_standard_library(result: bytes) -> None:
    body = result.replace(b"%b", FILL)
    assert wire.parse_strictly(body) == json.loads(body)


LONG_PIECES = st.sampled_from(
    [b'"%b"' % FILL, b'"%b":1' % FILL, b"[", b"]", b"{", b"}", b",", b'"a":1', b'"\xc3\xa9":', b"1"]
)


@given(st.lists(LONG_PIECES, max_size=10).map(b"".join))
def test_long_strings_make_the_parser_accept_nothing_that_it_would_refuse(body: bytes) -> None:
    try:
        value = wire.parse_strictly(body)
    except MalformedJson:
        return
    assert repr(value) == repr(_reference(body))
