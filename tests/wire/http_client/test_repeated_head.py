"""A message whose head equals an earlier one is read like any other, but not parsed again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.mcp.failures import Stage
from taskgate.mcp.http.reader import HttpHead, ReplyLimits, ReplyProblem, ReplyReader
from taskgate.mcp.http.repeated_head import RepeatedHead
from taskgate.mcp.turn_budget import SLICE_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: %d\r\nx-server: a\r\n\r\n"
EARLIER = HEAD % 11 + b'{"a":"bcd"}'


def reply(body: bytes) -> bytes:
    return HEAD % len(body) + body


Observed = tuple[HttpHead | None, bytes, bool, bool, list[object]]


def reading(reader: ReplyReader, pieces: list[bytes]) -> Observed | Stage:
    """Everything that can be observed of one reply, as its connection reads it."""
    events: list[object] = []
    reader.start(None, lambda event: events.append(event))
    try:
        for piece in pieces:
            repeated = reader.take_repeated(piece)
            if repeated is not None:
                assert piece is pieces[-1]
                return without_length(repeated[0]), repeated[1], True, True, events
            reader.feed(piece)
    except ReplyProblem as problem:
        return problem.stage
    return without_length(reader.head), reader.take_body(), reader.complete, reader.keep_alive, events


def without_length(head: HttpHead | None) -> HttpHead | None:
    """The head but for the length of its message, which a repeated head does not have."""
    if head is None:
        return None
    kept = [header for header in head.header_list if header[0] != b"content-length"]
    return HttpHead(
        head.status, {name: value for name, value in head.headers.items() if name != b"content-length"}, kept
    )


def used_reader(limits: ReplyLimits | None = None) -> ReplyReader:
    reader = ReplyReader(limits or ReplyLimits(4096, 4096))
    reading(reader, [EARLIER])
    assert reader.complete
    return reader


def test_a_repeated_head_is_not_parsed_again() -> None:
    reader = used_reader()
    reader.close()
    body = b"[" + b"1," * 300 + b"1]"
    found = reading(reader, [reply(body)])
    assert found == reading(ReplyReader(ReplyLimits(4096, 4096)), [reply(body)])
    assert not isinstance(found, Stage)
    assert found[1:4] == (body, True, True)
    reader.start(None, None)
    assert reader.take_repeated(reply(body).replace(b"x-server: a", b"x-server: b")) is None
    with pytest.raises(AttributeError):
        reader.feed(reply(body).replace(b"x-server: a", b"x-server: b"))


def test_the_head_of_a_reply_of_several_slices_is_kept() -> None:
    limits = ReplyLimits(8 * SLICE_BYTES, 4096)
    large = reply(b"[" + b"1," * SLICE_BYTES + b"1]")
    reader = ReplyReader(limits)
    assert reading(reader, [large]) == reading(ReplyReader(limits), [large])
    reader.start(None, None)
    assert reader.take_repeated(large) is not None
    followed = ReplyReader(limits)
    reading(followed, [large + EARLIER])
    followed.start(None, None)
    assert followed.take_repeated(large) is None


@given(st.data())
def test_after_any_reply_the_next_one_is_read_as_by_a_new_reader(data: st.DataObject) -> None:
    following = bytearray(reply(data.draw(st.binary(min_size=1, max_size=20))))
    for _ in range(data.draw(st.integers(0, 2))):
        begin = data.draw(st.integers(0, len(following)))
        end = data.draw(st.integers(begin, min(len(following), begin + 4)))
        following[begin:end] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"\r\n", b"0", b"7", b" ", b"\r\n\r\n"])
        )
    cut = data.draw(st.integers(0, len(following)) | st.just(len(following)))
    pieces = [bytes(piece) for piece in (following[:cut], following[cut:]) if piece]
    assert reading(used_reader(), pieces) == reading(ReplyReader(ReplyLimits(4096, 4096)), pieces)


@pytest.mark.parametrize(
    "following",
    [
        HEAD % 3 + b"{}",
        HEAD % 1 + b"{}",
        HEAD % 0,
        HEAD % 5000 + b"1" * 5000,
        HEAD.replace(b"%d", b"99999999999999999999") + b"{}",
        HEAD.replace(b"%d", b"+2") + b"{}",
        HEAD.replace(b"%d", b"02") + b"{}",
        HEAD.replace(b"%d", b"") + b"{}",
        reply(b"{}") + reply(b"{}"),
        reply(b"{}").replace(b"200 OK", b"201 OK"),
    ],
)
def test_a_head_that_is_almost_repeated_is_read_as_by_a_new_reader(following: bytes) -> None:
    assert reading(used_reader(), [following]) == reading(ReplyReader(ReplyLimits(4096, 4096)), [following])


def test_the_end_of_a_body_is_no_reply_of_its_own() -> None:
    """Its first part is larger than what the parser is given at once, and the rest looks like a complete reply."""
    rest = reply(b"{}")
    whole = reply(b" " * (SLICE_BYTES + 1) + rest)
    pieces = [whole[: -len(rest)], rest]
    limits = ReplyLimits(2 * SLICE_BYTES, 4096)
    found = reading(used_reader(limits), pieces)
    assert found == reading(ReplyReader(limits), pieces)
    assert not isinstance(found, Stage)
    assert found[1:4] == (b" " * (SLICE_BYTES + 1) + rest, True, True)


def test_an_event_stream_is_not_taken_for_json_after_an_exchange_without_events() -> None:
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\ndata: 1\n\n"
    reader, events = ReplyReader(ReplyLimits(4096, 4096)), list[object]()
    reader.start(None, None)
    reader.feed(stream)
    reader.start(None, lambda event: events.append(event))
    reader.feed(stream)
    assert len(events) == 1


def test_a_repeated_head_has_no_length_of_another_message() -> None:
    reader = used_reader()
    reader.start(None, None)
    repeated = reader.take_repeated(reply(b"[1]"))
    assert repeated is not None
    assert (repeated[0].headers, repeated[1]) == ({b"content-type": b"application/json", b"x-server": b"a"}, b"[1]")


@pytest.mark.parametrize(
    ("message", "body_size", "extra"),
    [
        (EARLIER, 10, ()),
        (EARLIER + b"\r\n", 11, ()),
        (HEAD % 0, 0, ()),
        (EARLIER, 11, ((b"x-server", b"b"),)),
        (EARLIER, 11, ((b"transfer-encoding", b"chunked"),)),
        (EARLIER.replace(b"Content-Length", b"Content-Size"), 11, ()),
    ],
)
def test_heads_that_cannot_be_recognized(
    message: bytes, body_size: int, extra: tuple[tuple[bytes, bytes], ...]
) -> None:
    headers = [(b"content-length", b"11"), (b"x-server", b"a"), *extra]
    assert RepeatedHead.of(message, body_size, headers, dict(headers)) is None
