"""Strict parsing of one large message in slices.

`wire.parse_strictly` parses a message at once, which takes too long for many megabytes or many thousand values.
`StrictScan` accepts and rejects the same documents, but returns after each slice and continues with the next call. A
document with too many values is rejected before it is parsed.

`StrictScan.step` builds no values: it checks the document and records the offsets of the members of the outermost
object, which is all that relaying a result needs. `StrictScan.decoded` builds the values. The caller decides what
happens between two slices.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.placeholders import PlaceholderObject
from taskgate.core.wire import BeyondLimits, MalformedJson, Message, Raw

SLICE_BYTES: Final = 32 * 1024
SLICE_TOKENS: Final = 1_000
_MAX_DIGITS: Final = 4_300
"""The parser for small messages rejects integers with more digits as well."""

_WORD_DIGITS: Final = 18
_BLANK: Final = (b" ", b"\t", b"\n", b"\r")
_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_IN_STRING: Final = re.compile(
    rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))*+"
)
_LONGEST_ESCAPE: Final = 12
_LONG_STRING: Final = 1_000
_USUAL_ESCAPES: Final = (rb"\\", rb"\"", rb"\n", rb"\t")
"""In this order: the second half of an escaped backslash begins no escape."""
_ENDS_PLAIN_TEXT: Final = bytes(byte < 0x20 or byte in b'"\\' for byte in range(256))
_SCALAR: Final = re.compile(rb"(-?(?:0|[1-9][0-9]*+))(\.[0-9]++)?([eE][+-]?[0-9]++)?|true|false|null")

_SIMPLE: Final = rb'(?:"[^"\\\x00-\x1f]{0,4000}+"|-?(?:0|[1-9][0-9]{0,16})|true|false|null|\{\}|\[\])[ \t\n\r]{0,1000}+'
_SIMPLE_MEMBER: Final = re.compile(
    rb'[ \t\n\r]{0,1000}+"([^"\\\x00-\x1f]{0,200}+)"[ ]{0,8}+:[ ]{0,8}+' + _SIMPLE + rb"([,}])"
)
_SIMPLE_ELEMENT: Final = re.compile(rb"[ \t\n\r]{0,1000}+" + _SIMPLE + rb"([,\]])")
"""The most common content of documents, matched at once."""
_PIECE_BYTES: Final = 16 * 1024
"""How much of a large array or object is decoded at once."""
_TEXT_BYTES: Final = 256 * 1024
"""How much of a large string is decoded at once."""


class _LargeValue:
    """An array or object that is too large to be decoded at once, as its parts.

    A part is either a piece of its text, from one offset to another, or a large value in it, with the offsets of its
    key.
    """

    __slots__ = ("is_object", "parts")

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        self.parts: list[tuple[int, int, _Large | None]] = []


_LargeText = list[int]
"""A string that is too large to be decoded at once: the offsets at which its pieces begin, and the end of the last one."""
_Large = _LargeValue | _LargeText
_Parts = Iterator[tuple[int, int, _Large | None]]


def _empty(large: _LargeValue) -> tuple[dict[str, Any] | list[Any], _Parts]:
    """Return the empty value for a large value, and the parts to fill it with."""
    return {} if large.is_object else [], iter(large.parts)


class _Container:
    """An array or object whose end has not been reached."""

    __slots__ = ("begin", "key_span", "keys", "large", "piece_at")

    def __init__(self, begin: int, keys: set[bytes] | None, key_span: tuple[int, int]) -> None:
        self.begin = begin
        self.keys = keys
        """The keys of an object so far; None for an array."""
        self.key_span = key_span
        """Offsets of its key in the containing object; in an array, its own offset."""
        self.piece_at = begin + 1
        """Offset of the text that belongs to none of its parts yet."""
        self.large: _LargeValue | None = None
        """Its parts, once it is known to be large."""

    def cut(self, end: int) -> None:
        """Make the text up to this offset a part."""
        if self.large is None:
            self.large = _LargeValue(self.keys is not None)
        self.large.parts.append((self.piece_at, end, None))
        self.piece_at = end

    def add_large(self, key_span: tuple[int, int], inner: _Large, end: int) -> None:
        """Add a large value that ends at this offset."""
        self.cut(key_span[0])
        assert self.large is not None
        self.large.parts.append((*key_span, inner))
        self.piece_at = end


class StrictScan:
    """Call `step` until it returns True, then use the other methods. Raises MalformedJson if the document is rejected."""

    __slots__ = (
        "_at",
        "_body",
        "_commas",
        "_decoded",
        "_decoder",
        "_elements",
        "_escape_goes_on",
        "_expects",
        "_has_long_numbers",
        "_in_string",
        "_is_object",
        "_key",
        "_key_span",
        "_max_depth",
        "_max_nodes",
        "_nodes",
        "_open",
        "_root",
        "_spans",
        "_string_at",
        "_text",
        "_value_at",
    )

    def __init__(self, body: bytes, max_depth: int, max_nodes: int) -> None:
        self._body = body
        self._max_depth = max_depth
        self._max_nodes = max_nodes
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._decoded = 0
        self._commas = 0
        self._in_string = self._escape_goes_on = False
        """Whether the decoded part ends in a string, and there with the backslash of an escape."""
        self._at = 0
        self._nodes = 0
        self._has_long_numbers = self._is_object = False
        self._open: list[_Container] = []
        self._root: _LargeValue | None = None
        self._expects = "value"
        """`value`, `key`, `colon`, `next` (a comma or an end), `first` (a key or an end), `first value`, `string`, `key
        string` or `end`.
        """
        self._string_at = 0
        self._text: _LargeText = []
        """The pieces of the current string, once it is known to be large."""
        self._key = b""
        self._key_span = (0, 0)
        self._value_at = 0
        self._spans: dict[str, tuple[int, int]] = {}
        self._elements: list[tuple[int, int]] = []

    def step(self) -> bool:
        """Scan one slice. Return True when the whole document has been scanned and is valid."""
        if self._decoded < len(self._body):
            self._decode()
            return False
        until = self._at + SLICE_BYTES
        for _ in range(SLICE_TOKENS):
            if self._expects == "end":
                return True
            if self._at >= until:
                break
            self._token()
        return False

    @property
    def is_result(self) -> bool:
        return "result" in self._spans and "method" not in self._spans and "error" not in self._spans

    def response(self) -> Message:
        """Return the message with a result, which keeps its bytes and is not decoded."""
        return wire.undecoded_response(self.members())

    def decoded(self) -> Generator[None, None, Any]:
        """Return the value of the document; yields between pieces."""
        decode = wire.parse_strictly if self._has_long_numbers else wire.parse_checked
        if self._root is None:
            return decode(self._body)
        filling = [_empty(self._root)]
        value = filling[0][0]
        while filling:
            made, parts = filling[-1]
            part = next(parts, None)
            if part is None:
                filling.pop()
                continue
            begin, end, large = part
            if large is not None:
                inner: Any
                if isinstance(large, _LargeValue):
                    filling.append(_empty(large))
                    inner = filling[-1][0]
                else:
                    inner = yield from self._text_of(large)
                if isinstance(made, dict):
                    made[decode(self._body[begin:end])] = inner
                else:
                    made.append(inner)
                continue
            text = self._body[begin:end].strip(b", \t\r\n")
            if isinstance(made, dict):
                made.update(decode(b"{%b}" % text))
            else:
                made.extend(decode(b"[%b]" % text))
            yield
        return value

    def _text_of(self, cuts: _LargeText) -> Generator[None, None, str]:
        pieces: list[str] = []
        for begin, end in itertools.pairwise(cuts):
            pieces.append(wire.parse_checked(b'"%b"' % self._body[begin:end]))
            yield
        return "".join(pieces)

    def members(self) -> dict[str, Raw]:
        """Return the members of the outermost object as views; empty if it is not an object."""
        view = memoryview(self._body)
        return {name: Raw(view[begin:end]) for name, (begin, end) in self._spans.items()}

    def copied_members(self) -> dict[str, Raw]:
        """Return copies of the members, for a message that may outlive the document."""
        return {name: Raw(self._body[begin:end]) for name, (begin, end) in self._spans.items()}

    def elements(self) -> list[Raw]:
        """Return the elements of the outermost array as views; empty if it is not an array."""
        view = memoryview(self._body)
        return [Raw(view[begin:end]) for begin, end in self._elements]

    def with_placeholders(self, nonce: str) -> PlaceholderObject:
        """Return the object without its large members. Its sender must not be able to guess `nonce`."""
        return PlaceholderObject(self._body, self._spans, nonce)

    def _decode(self) -> None:
        end = min(self._decoded + SLICE_BYTES, len(self._body))
        try:
            self._decoder.decode(self._body[self._decoded : end], final=end == len(self._body))
        except UnicodeDecodeError:
            raise MalformedJson(f"it is not UTF-8 near byte {self._decoded}") from None
        self._count_commas(self._body[self._decoded : end])
        self._decoded = end

    def _count_commas(self, piece: bytes) -> None:
        """Reject a document that must have too many values: there is one more than there are commas outside of strings."""
        if self._escape_goes_on:
            piece = piece[1:]
        if b"\\" in piece:
            piece = piece.replace(rb"\\", b"")
            self._escape_goes_on = piece.endswith(b"\\")
            piece = piece.replace(rb"\"", b"")
        else:
            self._escape_goes_on = False
        texts = piece.split(b'"')
        self._commas += b"".join(texts[self._in_string :: 2]).count(b",")
        self._in_string ^= len(texts) % 2 == 0
        if self._commas >= self._max_nodes:
            raise self._too_many()

    def _token(self) -> None:
        if self._expects in ("string", "key string"):
            self._continue_string()
            return
        if len(self._open) > 1 and self._simple():
            return
        at = self._at = self._after_space()
        byte = self._body[at : at + 1]
        if byte in _BLANK:
            # Only a slice of long whitespace has been scanned.
            return
        match self._expects:
            case "value" | "first value":
                if byte == b"]" and self._expects == "first value":
                    self._close(is_object=False)
                else:
                    self._begin_value(byte)
            case "key" | "first":
                if byte == b"}" and self._expects == "first":
                    self._close(is_object=True)
                else:
                    self._require(byte, b'"')
                    self._string_at, self._expects = at, "key string"
            case "colon":
                self._require(byte, b":")
                self._expects = "value"
            case _:
                self._after_value(byte)

    def _simple(self) -> bool:
        """Scan one short member or element that is no container, with its delimiter. Return False if there is none here."""
        container = self._open[-1]
        keys = container.keys
        if keys is None:
            found = _SIMPLE_ELEMENT.match(self._body, self._at) if self._expects in ("value", "first value") else None
        else:
            found = _SIMPLE_MEMBER.match(self._body, self._at) if self._expects in ("key", "first") else None
        if found is None:
            return False
        self._count()
        if keys is not None:
            self._add_key(keys, found[1])
        self._at = found.end()
        if found[found.re.groups] == b",":
            self._expects = "value" if keys is None else "key"
            if self._at - container.piece_at > _PIECE_BYTES:
                container.cut(self._at)
        else:
            self._end_container()
        return True

    def _after_space(self) -> int:
        """Return the offset of the next token. Whitespace is scanned in slices, because there may be megabytes of it."""
        found = _SPACE.match(self._body, self._at, self._at + SLICE_BYTES)
        assert found is not None
        return found.end()

    def _require(self, byte: bytes, expected: bytes) -> None:
        if byte != expected:
            raise MalformedJson(f"something unexpected at byte {self._at}")
        self._at += 1

    def _begin_value(self, byte: bytes) -> None:
        self._count()
        if len(self._open) == 1:
            self._value_at = self._at
        elif not self._open:
            self._is_object = byte == b"{"
        if byte == b"{":
            self._enter(set(), "first")
        elif byte == b"[":
            self._enter(None, "first value")
        elif byte == b'"':
            self._string_at, self._expects = self._at, "string"
            self._at += 1
        else:
            self._scalar()

    def _count(self) -> None:
        if len(self._open) > self._max_depth:
            raise BeyondLimits(depth=self._max_depth)
        self._nodes += 1
        if self._nodes > self._max_nodes:
            raise self._too_many()

    def _too_many(self) -> MalformedJson:
        return BeyondLimits(nodes=self._max_nodes)

    def _enter(self, keys: set[bytes] | None, expects: str) -> None:
        self._open.append(_Container(self._at, keys, self._key_of(self._at)))
        self._expects = expects
        self._at += 1

    def _scalar(self) -> None:
        found = _SCALAR.match(self._body, self._at)
        if found is None:
            raise MalformedJson(f"something unexpected at byte {self._at}")
        whole, fraction, exponent = found.groups()
        if whole is not None and len(whole) > _WORD_DIGITS:
            self._has_long_numbers = True
            if fraction is None and exponent is None and len(whole.lstrip(b"-")) > _MAX_DIGITS:
                raise MalformedJson("a number has too many digits")
        self._at = found.end()
        self._value_ended()

    def _only_plain_text(self) -> bool:
        """Skip a slice, or the part of it before the end of the string or before something that `_IN_STRING` must
        check. Long texts are mostly plain, and searching in bytes is several times as fast as matching.
        """
        piece = self._body[self._at : self._at + SLICE_BYTES]
        if b"\\" in piece:
            for escape in _USUAL_ESCAPES:
                piece = piece.replace(escape, b"..")
        plain = piece.translate(_ENDS_PLAIN_TEXT).find(1)
        self._at += len(piece) if plain < 0 else plain
        return plain < 0 and self._at < len(self._body)

    def _continue_string(self) -> None:
        if self._at - (self._text[-1] if self._text else self._string_at) > _TEXT_BYTES:
            self._cut_text()
        if self._at - self._string_at > _LONG_STRING and self._only_plain_text():
            return
        body, end = self._body, self._at + SLICE_BYTES
        found = _IN_STRING.match(body, self._at, end)
        assert found is not None
        self._at = at = found.end()
        byte = body[at : at + 1]
        if byte == b'"' and at < end:
            self._at += 1
            text, self._text = self._text, []
            if self._expects == "key string":
                self._take_key(body[self._string_at : self._at])
            else:
                if text and self._open:
                    self._open[-1].add_large(self._key_of(self._string_at), [*text, at], self._at)
                self._value_ended()
        elif at < end - _LONGEST_ESCAPE or at >= len(body):
            raise MalformedJson(f"a string is not in order at byte {at}")

    def _cut_text(self) -> None:
        """End a piece of a large string here, which is never within an escape, or before the character that this byte
        is part of.
        """
        cut = self._at
        while self._body[cut] & 0xC0 == 0x80:
            cut -= 1
        if not self._text:
            self._text.append(self._string_at + 1)
        self._text.append(cut)

    def _take_key(self, quoted: bytes) -> None:
        keys = self._open[-1].keys
        assert keys is not None
        self._key_span = (self._string_at, self._at)
        key = json.loads(quoted).encode() if b"\\" in quoted else quoted[1:-1]
        self._add_key(keys, key)
        if len(self._open) == 1:
            self._key = key
        self._expects = "colon"

    def _add_key(self, keys: set[bytes], key: bytes) -> None:
        if key in keys:
            raise MalformedJson(f"the key {key[:80]!r} appears twice in one object")
        keys.add(key)

    def _close(self, *, is_object: bool) -> None:
        if not self._open or (self._open[-1].keys is not None) is not is_object:
            raise MalformedJson(f"something unexpected at byte {self._at}")
        self._at += 1
        self._end_container()

    def _key_of(self, value_at: int) -> tuple[int, int]:
        """Return the offsets of the key of a value that begins here; in an array the offset of the value."""
        named = bool(self._open) and self._open[-1].keys is not None
        return self._key_span if named else (value_at, value_at)

    def _end_container(self) -> None:
        ended = self._open.pop()
        if self._at - ended.begin > _PIECE_BYTES:
            ended.cut(self._at - 1)
            if self._open and ended.large is not None:
                self._open[-1].add_large(ended.key_span, ended.large, self._at)
            self._root = ended.large
        self._value_ended()

    def _after_value(self, byte: bytes) -> None:
        if not self._open:
            if byte:
                raise MalformedJson(f"something follows the document at byte {self._at}")
            self._expects = "end"
        elif byte in (b"}", b"]"):
            self._close(is_object=byte == b"}")
        else:
            self._require(byte, b",")
            container = self._open[-1]
            self._expects = "key" if container.keys is not None else "value"
            if self._at - container.piece_at > _PIECE_BYTES:
                container.cut(self._at)

    def _value_ended(self) -> None:
        self._expects = "next"
        if len(self._open) != 1:
            return
        if self._open[0].keys is None:
            self._elements.append((self._value_at, self._at))
        else:
            self._spans[self._key.decode()] = (self._value_at, self._at)
