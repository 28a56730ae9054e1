"""The reply reader with malformed bytes, and with any chunk boundaries."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.mcp.failures import Stage
from taskgate.mcp.http.reader import ReplyLimits, ReplyProblem, ReplyReader

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_EVENTS = b"id: 1\ndata:\n\ndata: {}\r\n\r\n: ping\n\ndata: last\n\n"
_GOOD = [
    _HEAD + b"content-length: 2\r\n\r\n{}",
    _HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\nx: trailer\r\n\r\n",
    b"HTTP/1.1 103 Hints\r\nx: 1\r\n\r\n" + _HEAD + b"content-length: 2\r\n\r\n{}",
    b"HTTP/1.1 204 None\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    % (len(_EVENTS), _EVENTS),
]


def _read(pieces: list[bytes]) -> object:
    """Everything that can be observed of one reply."""
    events: list[object] = []
    reader = ReplyReader(ReplyLimits(4096, 4096))
    reader.start(None, lambda event: events.append(event))
    try:
        for piece in pieces:
            reader.feed(piece)
    except ReplyProblem as problem:
        return problem.stage
    return reader.head, reader.take_body(), reader.complete, reader.keep_alive, events


def _cut(data: st.DataObject, wire: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    edges = [0, *cuts, len(wire)]
    return [wire[start:end] for start, end in itertools.pairwise(edges) if end > start]


@given(st.sampled_from(_GOOD), st.data())
def test_reply_does_not_depend_on_chunk_boundaries(wire: bytes, data: st.DataObject) -> None:
    assert _read(_cut(data, wire)) == _read([wire])


@given(st.sampled_from(_GOOD), st.data())
def test_mutated_reply_is_read_or_rejected(wire: bytes, data: st.DataObject) -> None:
    mutated = bytearray(wire)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(mutated)))
        end = data.draw(st.integers(start, min(len(mutated), start + 8)))
        mutated[start:end] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"\r\n", b":", b"\0", b"0", b"\r\n\r\n"])
        )
    _read(_cut(data, bytes(mutated)))


def test_changed_limits_apply_to_open_stream() -> None:
    sizes: list[int] = []
    limits = ReplyLimits(100, 100)
    reader = ReplyReader(limits)
    reader.start(None, lambda event: sizes.append(len(event.data)))
    reader.apply_limits()
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    limits.max_event_bytes = 1000
    reader.apply_limits()
    reader.feed(b"data: %b\n\n" % (b"x" * 500))
    assert sizes == [500]
    limits.max_event_bytes = 100
    reader.apply_limits()
    with pytest.raises(ReplyProblem) as refused:
        reader.feed(b"data: %b\n\n" % (b"x" * 500))
    assert refused.value.stage is Stage.TOO_LARGE


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_rejected(noise: bytes) -> None:
    _read([noise])
