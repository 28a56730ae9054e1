"""Reading server-sent events: the same events however the bytes are cut and the lines are ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.client import ReplyTooLarge
from taskgate.client.transport.sse import EventReader

LINES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20)


def read(chunks: list[bytes], limit: int = 10_000) -> tuple[list[str], EventReader]:
    events: list[str] = []
    reader = EventReader(lambda data: events.append(data.decode()), limit)
    for chunk in chunks:
        reader.feed(chunk)
    return events, reader


@given(st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=4), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_events_do_not_depend_on_how_the_bytes_are_cut(events: list[list[str]], end: str, data: st.DataObject) -> None:
    text = "".join("".join(f"data: {line}{end}" for line in event) + end for event in events)
    stream = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    wanted = ["\n".join(event) for event in events if "\n".join(event)]
    assert read([chunk for chunk in chunks if chunk])[0] == wanted


def test_ids_retry_times_and_comments_are_understood() -> None:
    events, reader = read(
        [b"\xef\xbb\xbf: hello\nid: 7\nretry: 250\ndata: a\n\nevent: x\ndata:b\nid\n\nid: 9\ndata:\n\n"]
    )
    assert events == ["a", "b"]
    assert (reader.last_id, reader.retry_ms) == ("9", 250)


def test_an_id_counts_only_once_its_event_is_complete() -> None:
    _, reader = read([b"id: 1\ndata: a\n\nid: 2\ndata: half"])
    assert reader.last_id == "1"


def test_an_event_that_never_ends_is_refused() -> None:
    with pytest.raises(ReplyTooLarge):
        read([b"data: " + b"x" * 600] * 4, limit=1000)
    with pytest.raises(ReplyTooLarge):
        read([b"data: " + b"x" * 600 + b"\n"] * 4, limit=1000)
