"""A repeated call is read as it would be read in full, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.repeated_calls import MAX_DIGITS, MAX_FORMS, MAX_KEPT_BYTES, MAX_UNUSED, RepeatedCalls
from taskgate.core.wire import COUNTED_BYTES, Message, MessageReader

READER = MessageReader()
META = {"protocolVersion": "2026-07-28", "progressToken": 7, "large": 12345678901234567890123}
ARGUMENTS: dict[str, Any] = {"text": 'hi,"id":1', "none": {}, "list": [1.5, None]}
ID_FIRST = '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"echo","arguments":%s}}'
ID_LAST = '{"method":"tools/call","params":{"_meta":%s,"arguments":%%s,"name":"echo"},"jsonrpc":"2.0","id":%%s}'


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def id_first(message_id: str = "1", arguments: str = compact(ARGUMENTS)) -> bytes:
    return (ID_FIRST % (message_id, arguments)).encode()


def id_last(message_id: str = "1", arguments: str = compact(ARGUMENTS)) -> bytes:
    return (ID_LAST % compact(META) % (arguments, message_id)).encode()


def known(*bodies: bytes, reader: MessageReader = READER) -> RepeatedCalls:
    """The caller has sent these calls."""
    calls = RepeatedCalls()
    for body in bodies:
        calls.note(body, reader.read(body))
    return calls


def what_it_says(message: Message) -> tuple[Any, ...]:
    return message.kind, message.id, message.method, message.params, bytes(message.raw_params or b"")


def read_like_in_full(calls: RepeatedCalls, body: bytes, reader: MessageReader = READER) -> Message | None:
    """Return what was read. If anything was, then it is what reading in full results in."""
    message = calls.read(body, reader)
    if message is not None:
        assert what_it_says(message) == what_it_says(reader.read(body))
        assert repr(message.params) == repr(reader.read(body).params)
        assert message.members == wire.members_of(bytes(message.raw_params or b""))
    return message


@pytest.mark.parametrize("written", [id_first, id_last])
@pytest.mark.parametrize(
    ("message_id", "arguments"),
    [
        ("1", ARGUMENTS),
        ("2", {}),
        ("3", {"a": 123456789012345678901234567890, "b": 0.1}),
        ("9" * MAX_DIGITS, {"a": [[[{"b": "ä€"}]]], "id": 5}),
        ("30", {"text": "x" * (COUNTED_BYTES - len('{"text":""}'))}),
        ("31", {'"arguments":': ',"name":"echo"},"jsonrpc":"2.0","id":8}'}),
    ],
)
def test_a_call_with_another_id_and_other_arguments_is_recognised(
    written: Any, message_id: str, arguments: dict[str, Any]
) -> None:
    message = read_like_in_full(known(written()), written(message_id, compact(arguments)))
    assert message is not None
    assert (message.id, message.params["arguments"]) == (message_id.encode(), arguments)


@pytest.mark.parametrize("written", [id_first, id_last])
@pytest.mark.parametrize(
    ("message_id", "arguments"),
    [
        pytest.param("01", "{}", id="id with a leading zero"),
        pytest.param("-1", "{}", id="negative id"),
        pytest.param("", "{}", id="no id"),
        pytest.param("1.0", "{}", id="fraction as id"),
        pytest.param('"1"', "{}", id="string as id"),
        pytest.param("1" * (MAX_DIGITS + 1), "{}", id="long id"),
        pytest.param("1 ", "{}", id="space after the id"),
        pytest.param("1", "[]", id="array as arguments"),
        pytest.param("1", "null", id="no arguments"),
        pytest.param("1", "", id="nothing as arguments"),
        pytest.param("1", '{"a":1', id="open object"),
        pytest.param("1", '{"a":1}}', id="closed twice"),
        pytest.param("1", '{"a":1},"name":"other"', id="another name"),
        pytest.param("1", '{"a":1},"arguments":{}', id="arguments twice"),
        pytest.param("1", '{"a":1,"a":1}', id="key twice"),
        pytest.param("1", '{"a": 1}', id="space"),
        pytest.param("1", '{"a":1.0e2}', id="exponent"),
        pytest.param("1", '{"a":"\\u0041"}', id="escape"),
        pytest.param("1", '{"a":"\\ud800"}', id="half of a surrogate pair"),
        pytest.param("1", '{"a":NaN}', id="not a number"),
        pytest.param("1", '{"a":"%s"}' % ("x" * COUNTED_BYTES), id="long arguments"),
    ],
)
def test_everything_else_is_left_to_the_full_reader(written: Any, message_id: str, arguments: str) -> None:
    assert known(written()).read(written(message_id, arguments), READER) is None


def test_a_call_with_other_bytes_around_the_id_and_the_arguments_is_left_to_the_full_reader() -> None:
    """Cut anywhere, or with any one byte changed, outside of the arguments."""
    for body in (id_first(arguments="{}"), id_last(arguments="{}")):
        calls = known(body)
        for at in range(len(body)):
            for other in (body[:at] + b"3" + body[at + 1 :], body[:at] + body[at + 1 :], body[:at], body[at:] or b"}"):
                message = None if other == body else calls.read(other, READER)
                if message is not None:
                    assert what_it_says(message) == what_it_says(READER.read(other))
                    assert message.id != b"1"


@given(
    message_id=st.text("0123456789-. ,:}", max_size=18),
    arguments=st.text('{}[]",:\\0123456789.-eE antrufls', max_size=40)
    | st.builds(compact, st.dictionaries(st.text(), st.text())),
    written=st.sampled_from([id_first, id_last]),
)
@example(message_id="0", arguments="{}", written=id_first)
def test_no_call_is_read_differently(message_id: str, arguments: str, written: Any) -> None:
    calls = known(id_first(), id_last())
    body = written(message_id, arguments)
    try:
        READER.read(body)
    except CallerError:
        assert calls.read(body, READER) is None
    else:
        read_like_in_full(calls, body)


@pytest.mark.parametrize("written", [id_first, id_last])
def test_arguments_are_limited_as_in_a_call_that_is_read_in_full(written: Any) -> None:
    calls, fits = known(written()), written(arguments='{"a":%s}' % ("[" * 60 + "]" * 60))
    assert read_like_in_full(calls, fits) is not None
    too_deep = written(arguments='{"a":%s}' % ("[" * 63 + "]" * 63))
    assert calls.read(too_deep, READER) is None
    with pytest.raises(wire.BeyondLimits):
        READER.read(too_deep)


@pytest.mark.parametrize("limits", [(3, 1000), (64, 50)])
def test_lower_limits_apply_to_calls_that_were_accepted_before(limits: tuple[int, int]) -> None:
    body, reader = id_last(), MessageReader()
    calls = known(body, reader=reader)
    assert calls.read(body, reader) is not None
    reader.adopt(*limits)
    assert calls.read(body, reader) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo","arguments":{}}}',
        b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"echo","arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":[]}}',
        b'{"jsonrpc":"2.0", "id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo", "arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"result":{"arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"text":"%b"}}}'
        % (b"x" * MAX_KEPT_BYTES),
    ],
)
def test_no_form_is_kept_of_other_messages(body: bytes) -> None:
    assert known(body).read(body, READER) is None


def test_unknown_members_are_part_of_the_form() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"x":[1],"method":"tools/call","params":{"y":2,"arguments":{},"name":"echo"},"z":3}'
    message = read_like_in_full(known(body), body)
    assert message is not None
    assert bytes(message.raw_params or b"") == b'{"y":2,"arguments":{},"name":"echo"}'


def test_the_same_form_is_the_same_object() -> None:
    calls = known(id_first(), id_last())
    first, second = calls.read(id_first("1"), READER), calls.read(id_first("2", "{}"), READER)
    other = calls.read(id_last(), READER)
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.form is not None
    assert first.form is second.form
    assert first.form is not other.form
    assert READER.read(id_first()).form is None


def test_what_is_read_belongs_to_one_call() -> None:
    calls = known(id_first())
    first, second = calls.read(id_first("1"), READER), calls.read(id_first("2"), READER)
    assert first is not None
    assert second is not None
    assert first.params is not second.params
    assert first.members is not second.members


def named(tool: int) -> bytes:
    return id_first().replace(b'"echo"', b'"tool%d"' % tool)


def test_the_last_forms_are_kept() -> None:
    calls = known(*(named(tool) for tool in range(MAX_FORMS + 1)))
    assert [calls.read(named(tool), READER) is not None for tool in range(MAX_FORMS + 1)] == [False] + [
        True
    ] * MAX_FORMS


def test_a_caller_who_repeats_no_call_costs_little() -> None:
    calls = known(*(named(tool) for tool in range(MAX_UNUSED + 1)))
    assert calls.read(named(MAX_UNUSED), READER) is None
    assert calls.read(named(MAX_UNUSED - 1), READER) is not None
    calls.note(named(99), READER.read(named(99)))
    assert calls.read(named(99), READER) is not None
    for tool in range(MAX_UNUSED):
        assert calls.read(named(99), READER) is not None, tool
    for tool in range(MAX_UNUSED + 1):
        calls.note(named(tool), READER.read(named(tool)))
    assert calls.read(named(MAX_UNUSED), READER) is None
    assert calls.read(named(MAX_UNUSED - 1), READER) is not None
