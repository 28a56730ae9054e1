"""Strict reading of one large message, a slice at a time.

`wire.parse_strictly` reads a message in one go, which for many megabytes keeps everybody else waiting. This reads the same
documents and refuses the same ones, but stops after each slice and goes on when it is called again. It builds no values: it checks
the document and remembers where the members of the outermost object are, which is all that relaying needs. Pure: whoever drives it
decides what happens between two slices.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.wire import InvalidMessage, MalformedJson, Message, Raw

SLICE_BYTES: Final = 32 * 1024
SLICE_TOKENS: Final = 1_000
_MOST_DIGITS: Final = 4_300
"""Integers with more digits are refused by the parser for small messages, too."""

_WORD_DIGITS: Final = 18
_BLANK: Final = (b" ", b"\t", b"\n", b"\r")
_NULL: Final = Raw(b"null")
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

_SIMPLE: Final = rb'(?:"[^"\\\x00-\x1f]{0,4000}+"|-?(?:0|[1-9][0-9]{0,16})|true|false|null)[ \t\n\r]{0,1000}+'
_SIMPLE_MEMBER: Final = re.compile(
    rb'[ \t\n\r]{0,1000}+"([^"\\\x00-\x1f]{0,200}+)"[ ]{0,8}+:[ ]{0,8}+' + _SIMPLE + rb"([,}])"
)
_SIMPLE_ELEMENT: Final = re.compile(rb"[ \t\n\r]{0,1000}+" + _SIMPLE + rb"([,\]])")
"""What most documents mostly consist of, in one go."""


class StrictScan:
    """Call `step` until it returns True, then ask for the `message`. Raises MalformedJson where the document is refused."""

    __slots__ = (
        "_at",
        "_body",
        "_decoded",
        "_decoder",
        "_elements",
        "_expects",
        "_has_long_numbers",
        "_is_object",
        "_key",
        "_max_depth",
        "_max_nodes",
        "_nodes",
        "_open",
        "_spans",
        "_string_at",
        "_value_at",
    )

    def __init__(self, body: bytes, max_depth: int, max_nodes: int) -> None:
        self._body = body
        self._max_depth = max_depth
        self._max_nodes = max_nodes
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._decoded = 0
        self._at = 0
        self._nodes = 0
        self._has_long_numbers = self._is_object = False
        self._open: list[set[bytes] | None] = []
        """The keys of every object that is open; None stands for an array."""
        self._expects = "value"
        """`value`, `key`, `colon`, `next` (a comma or an end), `first` (a key or an end), `first value`, `string`, `key string`
        or `end`."""
        self._string_at = 0
        self._key = b""
        self._value_at = 0
        self._spans: dict[str, tuple[int, int]] = {}
        self._elements: list[tuple[int, int]] = []

    def step(self) -> bool:
        """Read on for a while. True when the whole document has been read and is in order."""
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

    def message(self) -> Message:
        """The message. A result keeps its bytes and is not decoded."""
        if not self._is_object:
            raise InvalidMessage("a message is an object")
        if "result" not in self._spans or "method" in self._spans or "error" in self._spans:
            return wire.checked_message(self._body, exactly=self._has_long_numbers)
        members = {name: Raw(self._body[begin:end]) for name, (begin, end) in self._spans.items() if name != "result"}
        message = wire.checked_message(wire.join({**members, "result": _NULL}), exactly=True)
        begin, end = self._spans["result"]
        return msgspec.structs.replace(message, raw_result=Raw(self._body[begin:end]))

    def members(self) -> dict[str, Raw]:
        """The members of the outermost object, each as it stands; nothing where it is no object."""
        view = memoryview(self._body)
        return {name: Raw(view[begin:end]) for name, (begin, end) in self._spans.items()}

    def elements(self) -> list[Raw]:
        """The elements of the outermost array, each as it stands; nothing where it is no array."""
        view = memoryview(self._body)
        return [Raw(view[begin:end]) for begin, end in self._elements]

    def hollow(self, nonce: str) -> Hollow:
        """The object without its large members. `nonce` is something that its sender cannot have guessed."""
        return Hollow(self._body, self._spans, nonce)

    def _decode(self) -> None:
        end = min(self._decoded + SLICE_BYTES, len(self._body))
        try:
            self._decoder.decode(self._body[self._decoded : end], final=end == len(self._body))
        except UnicodeDecodeError:
            raise MalformedJson(f"it is not UTF-8 near byte {self._decoded}") from None
        self._decoded = end

    def _token(self) -> None:
        if self._expects in ("string", "key string"):
            self._go_on_in_string()
            return
        if len(self._open) > 1 and self._simple():
            return
        at = self._at = self._after_space()
        byte = self._body[at : at + 1]
        if byte in _BLANK:
            # Only a slice of a long space has been read.
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
                    self._want(byte, b'"')
                    self._string_at, self._expects = at, "key string"
            case "colon":
                self._want(byte, b":")
                self._expects = "value"
            case _:
                self._after_value(byte)

    def _simple(self) -> bool:
        """Read one short member or element that is no container, with what ends it. False if there is none here."""
        keys = self._open[-1]
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
        else:
            self._open.pop()
            self._value_ended()
        return True

    def _after_space(self) -> int:
        """Where the next token begins. Space is read in slices, too: there may be megabytes of it."""
        found = _SPACE.match(self._body, self._at, self._at + SLICE_BYTES)
        assert found is not None
        return found.end()

    def _want(self, byte: bytes, wanted: bytes) -> None:
        if byte != wanted:
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
            raise MalformedJson(f"it is nested deeper than {self._max_depth} levels")
        self._nodes += 1
        if self._nodes > self._max_nodes:
            raise MalformedJson(f"it holds more than {self._max_nodes} values")

    def _enter(self, keys: set[bytes] | None, expects: str) -> None:
        self._open.append(keys)
        self._expects = expects
        self._at += 1

    def _scalar(self) -> None:
        found = _SCALAR.match(self._body, self._at)
        if found is None:
            raise MalformedJson(f"something unexpected at byte {self._at}")
        whole, fraction, exponent = found.groups()
        if whole is not None and len(whole) > _WORD_DIGITS:
            self._has_long_numbers = True
            if fraction is None and exponent is None and len(whole.lstrip(b"-")) > _MOST_DIGITS:
                raise MalformedJson("a number has too many digits")
        self._at = found.end()
        self._value_ended()

    def _only_plain_text(self) -> bool:
        """Skip a slice, or what of it comes before the string's end or before what `_IN_STRING` must judge. Long texts are mostly
        plain, and searching in bytes is several times as quick as matching."""
        piece = self._body[self._at : self._at + SLICE_BYTES]
        if b"\\" in piece:
            for escape in _USUAL_ESCAPES:
                piece = piece.replace(escape, b"..")
        plain = piece.translate(_ENDS_PLAIN_TEXT).find(1)
        self._at += len(piece) if plain < 0 else plain
        return plain < 0 and self._at < len(self._body)

    def _go_on_in_string(self) -> None:
        if self._at - self._string_at > _LONG_STRING and self._only_plain_text():
            return
        body, end = self._body, self._at + SLICE_BYTES
        found = _IN_STRING.match(body, self._at, end)
        assert found is not None
        self._at = at = found.end()
        byte = body[at : at + 1]
        if byte == b'"' and at < end:
            self._at += 1
            if self._expects == "key string":
                self._take_key(body[self._string_at : self._at])
            else:
                self._value_ended()
        elif at < end - _LONGEST_ESCAPE or at >= len(body):
            raise MalformedJson(f"a string is not in order at byte {at}")

    def _take_key(self, quoted: bytes) -> None:
        keys = self._open[-1]
        assert keys is not None
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
        if not self._open or (self._open[-1] is not None) is not is_object:
            raise MalformedJson(f"something unexpected at byte {self._at}")
        self._open.pop()
        self._at += 1
        self._value_ended()

    def _after_value(self, byte: bytes) -> None:
        if not self._open:
            if byte:
                raise MalformedJson(f"something follows the document at byte {self._at}")
            self._expects = "end"
        elif byte in (b"}", b"]"):
            self._close(is_object=byte == b"}")
        else:
            self._want(byte, b",")
            self._expects = "key" if self._open[-1] is not None else "value"

    def _value_ended(self) -> None:
        self._expects = "next"
        if len(self._open) != 1:
            return
        if self._open[0] is None:
            self._elements.append((self._value_at, self._at))
        else:
            self._spans[self._key.decode()] = (self._value_at, self._at)


_KEPT_BYTES: Final = 16 * 1024


class Hollow:
    """A large object without its large members, each of which has left a small one of the same kind in its place.

    What looks at an object or edits its members can so be applied to a few bytes; `refill` puts the large members back.
    """

    __slots__ = ("_aside", "small")

    def __init__(self, body: bytes, spans: Mapping[str, tuple[int, int]], nonce: str) -> None:
        self._aside: dict[bytes, memoryview] = {}
        view = memoryview(body)
        members: dict[str, Raw] = {}
        for number, (name, (begin, end)) in enumerate(spans.items()):
            if end - begin <= _KEPT_BYTES:
                members[name] = Raw(body[begin:end])
                continue
            mark = wire.encode(f"{nonce}{number}")
            stands_in = {b"{": b'{"large":%b}', b"[": b"[%b]"}.get(body[begin : begin + 1], b"%b") % mark
            self._aside[stands_in] = view[begin:end]
            members[name] = Raw(stands_in)
        self.small = wire.join(members)

    def refill(self, edited: bytes) -> bytes:
        """The edited object with its large members. One that was edited away stays away."""
        parts: list[bytes | memoryview] = []
        places = sorted((edited.find(mark), mark) for mark in self._aside)
        end = 0
        for at, mark in places:
            if at >= 0:
                parts += [edited[end:at], self._aside[mark]]
                end = at + len(mark)
        return b"".join([*parts, edited[end:]])
