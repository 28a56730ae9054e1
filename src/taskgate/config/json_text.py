"""Parse JSON with comments and trailing commas, as in editors' settings files, with the span of every value.

Used for configuration files (positions in messages) and for editing other programs' settings (change one value and
leave every other byte unchanged). The scanner is not recursive; nesting is limited by `MAX_DEPTH`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right

import msgspec
from msgspec import field

from taskgate.config.problems import ConfigError, Mark, problem_at
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence

MAX_DEPTH = 64
MAX_NODES = 100_000
_SKIP = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD = re.compile(r"[-+.A-Za-z0-9_]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?\Z")


class Span(msgspec.Struct, frozen=True):
    """The position of a value in the text: first character, and one past the last."""

    start: int
    end: int


class Member(msgspec.Struct, frozen=True):
    """One member of an object; the span is from the first quote of the key to the last character of the value."""

    key: str
    span: Span
    value: Value


class Value(msgspec.Struct, frozen=True):
    """A value with its span. Exactly one of `members`, `items` and `scalar` applies."""

    span: Span
    members: tuple[Member, ...] | None = None
    items: tuple[Value, ...] | None = None
    scalar: str | int | float | bool | None = None

    def member(self, key: str) -> Member | None:
        return next((m for m in self.members or () if m.key == key), None)


class _Open(msgspec.Struct):
    start: int
    is_object: bool
    members: list[Member] = field(default_factory=list)
    items: list[Value] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    key: tuple[str, int] | None = None
    wants_comma: bool = False


class JsonTextError(ValueError):
    """The text is not valid JSON; `offset` is the position of the error."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


def scan(text: str, max_values: int = MAX_NODES) -> Value:
    """Return the value of the text, with spans. Raises JsonTextError."""
    return _Scanner(text, max_values).run()


def read_json(text: str, name: str) -> Node | None:
    """Return the value as a tree with positions; None for an empty text. Raises ConfigError."""
    places = Places(text, name)
    if not _SKIP.sub("", text):
        return None
    try:
        return _node(scan(text), places)
    except JsonTextError as error:
        hint = "check quotes, commas and brackets at this position" if error.message.startswith("expected") else ""
        raise ConfigError(
            [problem_at(places.mark(error.offset), "", f"not valid JSON: {error.message}", hint)]
        ) from None


class Places:
    """Converts offsets to lines and columns."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def mark(self, offset: int) -> Mark:
        line = bisect_right(self._starts, offset)
        return Mark(self._name, line, offset - self._starts[line - 1] + 1)


class _Scanner(msgspec.Struct):
    _text: str
    _max_values: int
    _at: int = 0
    _stack: list[_Open] = field(default_factory=list)
    _count: int = 0

    def run(self) -> Value:
        while True:
            self._skip()
            done = self._step()
            if done is not None and not self._stack:
                self._skip()
                if self._at < len(self._text):
                    raise JsonTextError("expected the end of the file", self._at)
                return done
            if done is not None:
                self._attach(done)

    def _skip(self) -> None:
        found = _SKIP.match(self._text, self._at)
        if found:
            self._at = found.end()

    def _step(self) -> Value | None:
        """Read one token. Return a value when it is complete, else None."""
        if self._at >= len(self._text):
            raise JsonTextError("expected more text, but the file ends", self._at)
        char = self._text[self._at]
        top: _Open | None = self._stack[-1] if self._stack else None
        if top is not None and char == ("}" if top.is_object else "]") and top.key is None:
            self._at += 1
            self._stack.pop()
            span = Span(top.start, self._at)
            return Value(span, members=tuple(top.members)) if top.is_object else Value(span, items=tuple(top.items))
        if top is not None and top.wants_comma:
            if char != ",":
                raise JsonTextError('expected "," or the closing bracket', self._at)
            self._at += 1
            top.wants_comma = False
            return None
        if top is not None and top.is_object and top.key is None:
            self._key(top)
            return None
        return self._value(char)

    def _key(self, top: _Open) -> None:
        start = self._at
        key = self._string("expected a key in double quotes")
        if key in top.seen:
            raise JsonTextError(f'duplicate key "{key[:60]}"', start)
        top.seen.add(key)
        self._skip()
        if self._text[self._at : self._at + 1] != ":":
            raise JsonTextError('expected ":" after the key', self._at)
        self._at += 1
        top.key = (key, start)

    def _value(self, char: str) -> Value | None:
        self._count += 1
        if self._count > self._max_values:
            raise JsonTextError(f"more than {self._max_values} values", self._at)
        if char in "{[":
            if len(self._stack) >= MAX_DEPTH:
                raise JsonTextError(f"nested deeper than {MAX_DEPTH} levels", self._at)
            self._stack.append(_Open(self._at, char == "{"))
            self._at += 1
            return None
        start = self._at
        if char == '"':
            text = self._string("expected a closing quote")
            return Value(Span(start, self._at), scalar=text)
        return self._word(start)

    def _word(self, start: int) -> Value:
        found = _WORD.match(self._text, start)
        word = found.group() if found else ""
        self._at = start + len(word)
        span = Span(start, self._at)
        if word in ("true", "false"):
            return Value(span, scalar=word == "true")
        if word == "null":
            return Value(span, scalar=None)
        if _NUMBER.match(word) and len(word) < 400:
            return Value(span, scalar=json.loads(word))
        raise JsonTextError("expected a value", start)

    def _string(self, otherwise: str) -> str:
        found = _STRING.match(self._text, self._at)
        if not found:
            raise JsonTextError(otherwise, self._at)
        try:
            text = str(json.loads(found.group()))
        except ValueError:
            raise JsonTextError("invalid escape in a string", self._at) from None
        self._at = found.end()
        return text

    def _attach(self, value: Value) -> None:
        top: _Open = self._stack[-1]
        if top.is_object:
            assert top.key is not None
            key, start = top.key
            top.members.append(Member(key, Span(start, value.span.end), value))
            top.key = None
        else:
            top.items.append(value)
        top.wants_comma = True


def _node(value: Value, places: Places) -> Node:
    mark = places.mark(value.span.start)
    if value.members is not None:
        return Mapping(
            {m.key: Entry(m.key, places.mark(m.span.start), _node(m.value, places)) for m in value.members}, mark
        )
    if value.items is not None:
        return Sequence(tuple(_node(item, places) for item in value.items), mark)
    if value.scalar is None:
        return Scalar(None, mark)
    if isinstance(value.scalar, bool):
        return Scalar("true" if value.scalar else "false", mark)
    return Scalar(str(value.scalar), mark)
