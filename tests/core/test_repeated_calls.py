"""A repeated call is read as it would be read in full, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskgate.core import repeated_calls, wire
from taskgate.core.errors import CallerError
from taskgate.core.repeated_calls import (
    MAX_CREDIT,
    MAX_DIGITS,
    MAX_FORMS,
    MAX_KEPT_BYTES,
    MAX_KEPT_VALUES,
    PAUSE,
    RepeatedCalls,
)
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
        assert calls.read(body, reader) == reader.read(body)
    return calls


def what_it_says(message: Message) -> tuple[Any, ...]:
    return message.kind, message.id, message.method, message.params, bytes(message.raw_params or b"")


def recognised(calls: RepeatedCalls, body: bytes, reader: MessageReader = READER) -> Message | None:
    """Return the message if it was recognised. In any case, what was read is what reading in full results in."""
    try:
        in_full = reader.read(body)
    except CallerError as refused:
        with pytest.raises(type(refused), match=re.escape(refused.message)):
            calls.read(body, reader)
        return None
    message = calls.read(body, reader)
    assert what_it_says(message) == what_it_says(in_full)
    assert repr(message.params) == repr(in_full.params)
    if message.form is None:
        assert message.members is None
        return None
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
    message = recognised(known(written()), written(message_id, compact(arguments)))
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
    assert recognised(known(written()), written(message_id, arguments)) is None


def test_a_call_with_other_bytes_around_the_id_and_the_arguments_is_left_to_the_full_reader() -> None:
    """Cut anywhere, or with any one byte changed, outside of the arguments."""
    for body in (id_first(arguments="{}"), id_last(arguments="{}")):
        for at in range(len(body)):
            for other in (body[:at] + b"3" + body[at + 1 :], body[:at] + body[at + 1 :], body[:at], body[at:] or b"}"):
                message = recognised(known(body), other)
                assert message is None or other == body or message.id != b"1"


@given(
    message_id=st.text("0123456789-. ,:}", max_size=18),
    arguments=st.text('{}[]",:\\0123456789.-eE antrufls', max_size=40)
    | st.builds(compact, st.dictionaries(st.text(), st.text())),
    written=st.sampled_from([id_first, id_last]),
)
@example(message_id="0", arguments="{}", written=id_first)
def test_no_call_is_read_differently(message_id: str, arguments: str, written: Any) -> None:
    recognised(known(id_first(), id_last()), written(message_id, arguments))


@pytest.mark.parametrize("written", [id_first, id_last])
def test_arguments_are_limited_as_in_a_call_that_is_read_in_full(written: Any) -> None:
    calls, fits = known(written()), written(arguments='{"a":%s}' % ("[" * 60 + "]" * 60))
    assert recognised(calls, fits) is not None
    too_deep = written(arguments='{"a":%s}' % ("[" * 63 + "]" * 63))
    with pytest.raises(wire.BeyondLimits):
        calls.read(too_deep, READER)


@pytest.mark.parametrize("limits", [(3, 1000), (64, 5)])
def test_lower_limits_apply_to_calls_that_were_accepted_before(limits: tuple[int, int]) -> None:
    body, reader = id_last(), MessageReader()
    calls = known(body, reader=reader)
    assert recognised(calls, body, reader) is not None
    reader.adopt(*limits)
    with pytest.raises(wire.BeyondLimits):
        calls.read(body, reader)


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
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":[%b1],"arguments":{}}}'
        % (b"1," * MAX_KEPT_VALUES),
    ],
)
def test_no_form_is_kept_of_other_messages(body: bytes) -> None:
    assert recognised(known(body), body) is None


def test_unknown_members_are_part_of_the_form() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"x":[1],"method":"tools/call","params":{"y":2,"arguments":{},"name":"echo"},"z":3}'
    message = recognised(known(body), body)
    assert message is not None
    assert bytes(message.raw_params or b"") == b'{"y":2,"arguments":{},"name":"echo"}'


def test_the_same_form_is_the_same_object() -> None:
    calls = known(id_first(), id_last())
    first, second, other = (recognised(calls, body) for body in (id_first("1"), id_first("2", "{}"), id_last()))
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.form is second.form
    assert first.form is not other.form


def test_what_is_read_belongs_to_one_call() -> None:
    calls = known(id_first(arguments='{"password":"secret"}'))
    first, second = calls.read(id_first("1"), READER), calls.read(id_first("2"), READER)
    assert first.params is not second.params
    assert first.members is not second.members
    assert "secret" not in repr(msgspec.structs.asdict(first.form))  # type: ignore[arg-type]


def named(tool: int) -> bytes:
    return id_first().replace(b'"echo"', b'"tool%d"' % tool)


def tools_recognised(calls: RepeatedCalls, tools: Iterable[int]) -> list[int]:
    return [tool for tool in tools if recognised(calls, named(tool)) is not None]


def test_the_last_forms_are_kept() -> None:
    calls = RepeatedCalls()
    for tool in range(MAX_FORMS + 1):
        for _ in range(MAX_CREDIT):
            calls.read(named(tool), READER)
    newest_first = range(MAX_FORMS, -1, -1)
    assert tools_recognised(calls, newest_first) == list(newest_first)[:MAX_FORMS]


@pytest.mark.parametrize("tools", [MAX_FORMS + 1, 2 * MAX_FORMS])
def test_most_calls_of_a_few_more_tools_are_recognised(tools: int) -> None:
    turns = 200
    found = tools_recognised(RepeatedCalls(), [tool for _ in range(turns) for tool in range(tools)])
    assert len(found) > turns * (MAX_FORMS - 1)


def forms_noted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    noted = list[bytes]()
    of = repeated_calls._Form.of

    def observed(body: bytes, message: Message) -> Any:
        noted.append(body)
        return of(body, message)

    monkeypatch.setattr(repeated_calls._Form, "of", observed)
    return noted


def test_a_caller_who_repeats_no_call_costs_little_and_may_begin_to(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, calls = forms_noted(monkeypatch), RepeatedCalls()
    assert not tools_recognised(calls, range(10 * PAUSE))
    assert len(noted) <= 50
    assert len(tools_recognised(calls, [0] * 2 * PAUSE)) >= PAUSE - MAX_CREDIT


def test_a_form_whose_arguments_are_always_unusual_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, calls = forms_noted(monkeypatch), known(named(1), named(2))
    unusual = named(2).replace(b"hi", b"\\u00e9")
    assert all(recognised(calls, body) is not None for body in (named(1), named(2)))
    for _ in range(2 * PAUSE):
        assert recognised(calls, named(1)) is not None
        assert recognised(calls, unusual) is None
    assert len(noted) == 2


def test_comparing_ends_if_no_call_can_be_recognised() -> None:
    calls = known(named(1))
    unusual = named(1).replace(b"hi", b"\\u00e9")
    for _ in range(MAX_CREDIT):
        assert recognised(calls, unusual) is None
    assert not tools_recognised(calls, [1] * (PAUSE - MAX_CREDIT))
    assert tools_recognised(calls, [1] * 2 * MAX_CREDIT)
