"""Cut tool results that exceed the output limit of their server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from taskgate.core.catalog.output_schema import cut_notice
from taskgate.core.raw_json import Raw
from taskgate.mcp.json_errors import UNDECODABLE

MIN_OUTPUT_BYTES = 1024
TRUNCATED_META = "taskgate/truncated"

_MARKER_BYTES = 768
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_elements = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


def truncate_result(raw: bytes, max_bytes: int) -> bytes:
    """Return a tool result within its limit: unchanged if it fits, else cut, with a note that a model can read.

    Small fields are kept, then structured content if it fits, then content blocks from the front; the text block at the
    limit is cut between two characters. Limits below 1 KiB count as 1 KiB, because the note needs space.
    """
    if len(raw) <= max(max_bytes, MIN_OUTPUT_BYTES):
        return raw
    try:
        members = _members(raw)
        blocks = _elements(members.pop("content", Raw(b"[]")))
    except UNDECODABLE:
        members, blocks = {}, []
    cut = CutResult(members, blocks, len(raw), max_bytes)
    try:
        last = {} if cut.last is None else _members(cut.last)
    except UNDECODABLE:
        last = {}
    return cut.finish(last)


class CutResult:
    """Which parts of a result are kept, decided by sizes alone, so that the result need not be decoded.

    `last` is the content block at the limit; `finish` needs its members, because part of its text may be kept.
    """

    __slots__ = ("_dropped", "_kept", "_limit", "_passing", "_room", "_size", "last")

    def __init__(self, members: Mapping[str, Raw], blocks: Sequence[Raw], size: int, max_bytes: int) -> None:
        self._size = size
        self._limit = max(max_bytes, MIN_OUTPUT_BYTES)
        self._room = self._limit - _MARKER_BYTES
        self._kept: dict[str, Raw] = {}
        self._dropped: list[str] = []
        self._passing: list[Raw] = []
        self.last: Raw | None = None
        self._take_members(members)
        self._take_blocks(blocks)

    def _take_members(self, members: Mapping[str, Raw]) -> None:
        for name in sorted(members, key=lambda name: (name == "structuredContent", len(members[name]))):
            size = len(name) * 6 + len(members[name]) + 4
            if size <= self._room:
                self._kept[name] = members[name]
                self._room -= size
            elif name == "structuredContent" or (len(self._dropped) < 6 and name.isidentifier() and name.isascii()):
                # Other names could exceed the space of the note.
                self._dropped.append(name[:32])

    def _take_blocks(self, blocks: Sequence[Raw]) -> None:
        for block in blocks:
            if len(block) + 1 > self._room:
                self.last = block
                return
            self._passing.append(block)
            self._room -= len(block) + 1

    def finish(self, last: Mapping[str, Raw]) -> bytes:
        part = _cut_text(last, self._room - 1)
        passing = self._passing if part is None else [*self._passing, part]
        return _marked(self._kept, passing, self._size, self._limit, self._dropped)


def _cut_text(block: Mapping[str, Raw], room: int) -> Raw | None:
    """Return the block with as much of its text as fits; None if it is not text or nothing fits."""
    text = memoryview(block.get("text", b""))
    if bytes(block.get("type", b"")) != b'"text"' or bytes(text[:1]) != b'"':
        return None
    free = room - len(_encode({**block, "text": ""}))
    cut = cut_string(text, free + 2) if free > 0 else b'""'
    return None if cut == b'""' else Raw(_encode({**block, "text": Raw(cut)}))


_SURROGATES: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LONGEST_ESCAPE: Final = 12
_BYTES_BEFORE: Final = 4096


def cut_string(string: bytes | memoryview, size: int) -> bytes:
    """Cut a JSON string between two characters so that at most `size` bytes are left. It is not decoded."""
    if len(string) <= size:
        return bytes(string)
    end = max(1, size - 1)
    text = bytes(string[: end + _LONGEST_ESCAPE])
    while end > 1 and text[end] & 0xC0 == 0x80:
        end -= 1
    # Escapes that begin further ahead end before the cut.
    at = max(1, end - _LONGEST_ESCAPE)
    at += _is_escaped(text, at)
    while at < end:
        width = 1
        if text[at : at + 1] == b"\\":
            width = 12 if _SURROGATES.match(text, at) else 6 if text[at + 1 : at + 2] == b"u" else 2
        if at + width > end:
            end = at
        at += width
    return b"".join((memoryview(text)[:end], b'"'))


def _is_escaped(text: bytes, at: int) -> bool:
    """Whether the byte is the second one of an escape: it follows an odd number of backslashes."""
    begin = at
    while begin > 1:
        before = text[max(1, begin - _BYTES_BEFORE) : begin]
        rest = len(before.rstrip(b"\\"))
        begin -= len(before) - rest
        if rest:
            break
    return (at - begin) % 2 == 1


def _marked(kept: dict[str, Raw], blocks: list[Raw], size: int, limit: int, dropped: list[str]) -> bytes:
    lost = f" Left out: {', '.join(dropped)}." if dropped else ""
    text = f"[This result was cut by the gateway: it had {size} bytes and the limit is {limit}.{lost}]"
    note = {"originalBytes": size, "limitBytes": limit}
    try:
        meta = _members(kept.pop("_meta", Raw(b"{}")))
    except UNDECODABLE:
        meta = {}
    content = [*blocks, Raw(_encode({"type": "text", "text": text}))]
    if "structuredContent" in dropped:
        # A client with an output schema would reject a result without structured content.
        kept["structuredContent"] = Raw(_encode(cut_notice(size, limit, "The output was too large.")))
    return _encode({"content": content, **kept, "_meta": {**meta, TRUNCATED_META: note}})
