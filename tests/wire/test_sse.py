"""The event stream parser and formatter, by truth table and by property."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.mcp.sse import PING, SseEvent, SseOverflow, SseParser, format_event

_LIMIT = 1 << 20


def _parse(stream: bytes, cuts: list[int] | None = None) -> list[SseEvent]:
    parser = SseParser(_LIMIT)
    edges = [0, *sorted(cuts or []), len(stream)]
    return [event for start, end in itertools.pairwise(edges) for event in parser.feed(stream[start:end])]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b"data: a\n\n", [SseEvent(b"a")], id="one event"),
        pytest.param(b"data:a\n\n", [SseEvent(b"a")], id="no space after the colon"),
        pytest.param(b"data:  a\n\n", [SseEvent(b" a")], id="only one space is dropped"),
        pytest.param(b"data: a\r\rdata: b\r\n\r\n", [SseEvent(b"a"), SseEvent(b"b")], id="CR and CRLF"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"a")], id="byte order mark"),
        pytest.param(b": hello\n\n" + PING + b"data: a\n\n", [SseEvent(b"a")], id="comments"),
        pytest.param(b"data: a\ndata: b\ndata\n\n", [SseEvent(b"a\nb\n")], id="several data lines"),
        pytest.param(b"id: 7\ndata:\n\n", [SseEvent(b"", id="7")], id="priming event with a data line"),
        pytest.param(b"id: 7\n\n", [SseEvent(b"", id="7")], id="priming event without data"),
        pytest.param(b"retry: 300\n\n", [SseEvent(b"", retry=300)], id="retry alone"),
        pytest.param(b"event:\nevent: e\ndata: x\n\n", [SseEvent(b"x", "e")], id="the last name wins"),
        pytest.param(b"retry: 3x\n\n", [], id="retry that is no number"),
        pytest.param(b"id: a\0b\ndata: x\n\n", [SseEvent(b"x")], id="an id with NUL is ignored"),
        pytest.param(b"event: endpoint\ndata: /m\n\n", [SseEvent(b"/m", "endpoint")], id="named event"),
        pytest.param(b"event: endpoint\n\ndata: x\n\n", [SseEvent(b"x")], id="a name without data is forgotten"),
        pytest.param(b"foo: 1\nbar\ndata: x\n\n", [SseEvent(b"x")], id="unknown fields"),
        pytest.param(b"data: x\n", [], id="an unfinished event is not reported"),
        pytest.param(b"\n\n\n", [], id="blank lines"),
        pytest.param(b"id: \xff\ndata: x\n\n", [SseEvent(b"x", id="�")], id="an id that is not UTF-8"),
    ],
)
def test_streams_are_parsed_according_to_standard(stream: bytes, events: list[SseEvent]) -> None:
    assert _parse(stream) == events
    assert _parse(stream, list(range(len(stream)))) == events


def test_event_is_reported_at_carriage_return() -> None:
    parser = SseParser(_LIMIT)
    assert parser.feed(b"data: a\r\r") == [SseEvent(b"a")]
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\r\n\r") == [SseEvent(b"b")]


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: 123456789012345\n"],
        [b"data: 1234", b"5678901234567890"],
        [b"data: 12345\ndata: 12345\ndata: 12345\n"],
        [b":12345678901234567890"],
    ],
)
def test_event_over_limit_overflows(chunks: list[bytes]) -> None:
    parser = SseParser(16)
    *before, last = chunks
    for chunk in before:
        parser.feed(chunk)
    with pytest.raises(SseOverflow):
        parser.feed(last)


def test_overflow_contains_earlier_events() -> None:
    with pytest.raises(SseOverflow) as caught:
        SseParser(16).feed(b"data: a\n\ndata: 12345678901234567890\n\n")
    assert caught.value.events == [SseEvent(b"a")]


def test_many_small_events_never_overflow() -> None:
    parser = SseParser(16)
    assert len(parser.feed(b"data: 12345\n\n" * 100)) == 100


_word = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
_events = st.builds(
    SseEvent,
    data=st.binary(max_size=40),
    event=_word,
    id=st.none() | _word,
    retry=st.none() | st.integers(0, 10**9),
)


@given(st.lists(_events, max_size=6), st.data())
def test_formatted_event_is_parsed_back_for_any_chunks(events: list[SseEvent], data: st.DataObject) -> None:
    stream = PING.join(format_event(e.data, id=e.id, event=e.event, retry=e.retry) for e in events)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    expected = [SseEvent(b"\n".join(_split(e.data)), e.event, e.id, e.retry) for e in events]
    assert _parse(stream, cuts) == expected


def _split(data: bytes) -> list[bytes]:
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


@given(
    st.lists(
        st.sampled_from([b"data", b"id", b": ", b"\r", b"\n", b"x", b"\xef\xbb\xbf", b"retry:1", b"event:", b"\xff"])
    ),
    st.data(),
)
def test_events_do_not_depend_on_chunk_boundaries(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert _parse(stream, cuts) == _parse(stream)


def test_message_is_formatted_on_three_lines() -> None:
    assert format_event(b"{}") == b"event: message\ndata: {}\n\n"
    assert format_event(b"{}", id="1", event=None) == b"id: 1\ndata: {}\n\n"


@pytest.mark.parametrize("field", ["id", "event"])
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_field_with_line_break_is_rejected(field: str, value: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        format_event(b"", **{field: value})  # type: ignore[arg-type]
