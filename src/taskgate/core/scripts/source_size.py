"""Estimate what it costs to parse a source, before it is parsed: how many tokens it has, and how deep they nest.

Python parses in one call that blocks every other thread, and needs far longer for some sources than for others of the same size.
Reading the tokens takes time in proportion to the size. F-strings are read as code: Python 3.11 starts a parser of its own for each
of their fields, and later versions parse them as part of the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from taskgate.core.text.confusables import limit_combining_marks

MAX_TOKENS: Final = 15_000
"""Parsing this many takes less than 0.05 s of CPU time, whatever they are."""
_FIELD: Final = "f{"
"""The token that begins a field of an f-string."""
_FIELD_TOKENS: Final = 8
"""How many names cost as much as a field."""
_STATEMENT_TOKENS: Final = 3
"""The same of what ends a statement."""
_COSTS: Final = {_FIELD: _FIELD_TOKENS, "\n": _STATEMENT_TOKENS, ";": _STATEMENT_TOKENS}
_MAX_NESTED: Final = 60
_MAX_OPERATORS: Final = 400
"""Of one logical line: Python's own parser nests one level for each."""
_MAX_INSIDE: Final = 8_000
"""The same inside brackets, where one literal may have many lines."""
_MAX_INDENT: Final = 240
_OPENING, _CLOSING = "([{", ")]}"
_OPERATORS: Final = frozenset("-+*/%@&|^~<>!.") | {"not", "and", "or", "if", "else", "lambda", "await", "in", "is"}
_CODE: Final = re.compile(r"[^\S\n]*+(([rbfutRBFUT]{0,3})(\"\"\"|'''|\"|')|#[^\n]*+|\\?\n|\w++|.)", re.DOTALL)
"""The token, and of a string its prefix and its quote."""


def _until(quote: str, *, escapes: str, braces: str, end: str) -> re.Pattern[str]:
    """A pattern of the text in a string up to `end`. Every part of it is possessive, so a string that does not end is read once."""
    in_line, more = ("\n", "") if len(quote) == 1 else ("", f"|{quote[0]}(?!{quote[1:]})")
    return re.compile(rf"(?:[^\\{quote[0]}{in_line}{braces}]|{escapes}{more})*+({end})", re.DOTALL)


_QUOTES: Final = ('"""', "'''", '"', "'")
_STRING: Final = {quote: _until(quote, escapes=r"\\.", braces="", end=quote) for quote in _QUOTES}
# A backslash does not escape a brace of an f-string.
_ESCAPES: Final = r"\\[^{}]|\\(?=[{}])"
_FORMAT: Final = {quote: _until(quote, escapes=_ESCAPES, braces="{}", end="[{}]") for quote in _QUOTES}
_TEXT: Final = {
    quote: _until(quote, escapes=_ESCAPES + r"|\{\{|\}\}", braces="{}", end=rf"[{{}}]|{quote}") for quote in _QUOTES
}


class _Open(msgspec.Struct):
    """An f-string, or a field of one, that has not ended."""

    quote: str
    depth: int
    """Of the brackets around it, its own included."""
    reads: re.Pattern[str]
    is_field: bool


def exceeding_line(code: str) -> int:
    """The first line that nests too deeply or has too many parts, or 0. Only brackets, operators and indentation nest."""
    if line := _line_of_many_marks(code):
        return line
    code = code.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads it
    depth = operators = count = 0
    for token, place in _Tokens(code).read():
        count += _COSTS.get(token, 1)
        if token[-1] in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
            operators = operators if depth > 0 else 0
        elif token == "\n" and depth <= 0:
            operators = 0
        elif token in _OPERATORS:
            operators += 1
        if count > MAX_TOKENS or depth > _MAX_NESTED or operators > (_MAX_INSIDE if depth > 0 else _MAX_OPERATORS):
            return code.count("\n", 0, place) + 1
    rows = [
        (len(row) - len(row.lstrip(" \t")), number)
        for number, row in enumerate(code.split("\n"), start=1)
        if row.strip()
    ]
    return next((number for indent, number in rows if indent > _MAX_INDENT), 0)


def _line_of_many_marks(code: str) -> int:
    """The line of the first long run of combining marks, or 0. Python normalizes names, in quadratic time for such a run."""
    kept = code if code.isascii() else limit_combining_marks(code)
    if len(kept) == len(code):
        return 0
    place = next((at for at, (one, other) in enumerate(zip(code, kept, strict=False)) if one != other), len(kept))
    return code.count("\n", 0, place) + 1


class _Tokens:
    """The tokens of a source, without the text of strings."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._place = 0
        self._depth = 0
        self._open: list[_Open] = []
        self._ended = False

    def read(self) -> Iterator[tuple[str, int]]:
        """Every token with the place where it begins, up to a string or a field that has no end: there Python stops as well."""
        while not self._ended:
            inside = self._open[-1] if self._open else None
            found = (_CODE if inside is None else inside.reads).match(self._code, self._place)
            if found is None:
                return
            self._place = found.end()
            if inside is None or inside.reads is _CODE:
                self._read_code(found, inside)
                yield found[1], found.start(1)
            else:
                self._read_text(found[1], inside)
                yield _FIELD if found[1] == "{" else found[1], found.start(1)

    def _read_code(self, found: re.Match[str], inside: _Open | None) -> None:
        token, prefix, quote = found.groups()
        is_outer = inside is not None and self._depth == inside.depth
        if quote is not None:
            self._begin_string(prefix.lower(), quote)
        elif token in _OPENING:
            self._depth += 1
        elif token in _CLOSING:
            self._depth -= 1
            if is_outer:
                self._open.pop()
        elif token == ":" and inside is not None and is_outer:
            inside.reads = _FORMAT[inside.quote]

    def _begin_string(self, prefix: str, quote: str) -> None:
        if "f" in prefix or "t" in prefix:
            self._open.append(_Open(quote, self._depth, _TEXT[quote], is_field=False))
            return
        text = _STRING[quote].match(self._code, self._place)
        if text is None:
            self._ended = True
        else:
            self._place = text.end()

    def _read_text(self, end: str, inside: _Open) -> None:
        """Go on after the text of an f-string, or after the format in a field."""
        if end == "{":
            self._depth += 1
            self._open.append(_Open(inside.quote, self._depth, _CODE, is_field=True))
        elif (end == "}") is inside.is_field:
            self._open.pop()
            self._depth -= int(inside.is_field)
        else:
            self._ended = True
