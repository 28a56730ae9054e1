"""The line splitter, by truth table and by property."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.mcp.lines import LineSplitter, Oversize


@pytest.mark.parametrize(
    ("chunks", "lines", "unfinished"),
    [
        ([b"a\nb\n"], [b"a", b"b"], 0),
        ([b"a", b"b", b"\n"], [b"ab"], 0),
        ([b"a\r\n\r\n\nb\r", b"\n"], [b"a", b"b"], 0),
        ([b"a\nbc"], [b"a"], 2),
        ([b"12345678\n"], [b"12345678"], 0),
        ([b"123456789\nx\n"], [Oversize(9, b"123456789", b"123456789"), b"x"], 0),
        ([b"12345", b"6789", b"abc", b"d\nx\n"], [Oversize(13, b"123456789abcd", b"123456789abcd"), b"x"], 0),
        ([b"1234567890", b"1"], [], 11),
        ([b""], [], 0),
    ],
)
def test_chunks_become_lines(chunks: list[bytes], lines: list[bytes | Oversize], unfinished: int) -> None:
    splitter = LineSplitter(8)
    assert [line for chunk in chunks for line in splitter.feed(chunk)] == lines
    assert splitter.unfinished_bytes == unfinished


@given(st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r", b"efghij"])), st.data())
def test_lines_do_not_depend_on_chunk_boundaries(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    whole, pieces = LineSplitter(8), LineSplitter(8)
    edges = [0, *cuts, len(stream)]
    cut = [line for start, end in itertools.pairwise(edges) for line in pieces.feed(stream[start:end])]
    assert cut == whole.feed(stream)
    assert pieces.unfinished_bytes == whole.unfinished_bytes
