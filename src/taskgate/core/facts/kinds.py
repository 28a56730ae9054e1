"""How the value of a condition is written, for each kind of fact.

A value is plain data as it stands in the file: a text (numbers and booleans too), a list of them (any of), or a map with one of
`equals`, `glob`, `one_of`, `not`, `length` and `present`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from taskgate.core.facts.requirements import (
    AnyMember,
    Between,
    Equals,
    Length,
    Matches,
    Not,
    OneOf,
    OnScale,
    Present,
    Requirement,
    number_in,
)
from taskgate.core.facts.times import TIME_FORM, time_of_day
from taskgate.core.globs import Glob, PatternError

MAX_CHOICES: Final = 1_000
MAX_RANGE: Final = 100
"""Longer texts are no range."""
_WILDCARDS: Final = frozenset("*?[")
_COMPARED: Final = re.compile(r"(>=|<=|>|<)\s*(\S.*)")
_RANGE: Final = re.compile(r"(-?[\d.]+)\s*\.\.\s*(-?[\d.]+)")


class FactKind(msgspec.Struct, frozen=True):
    """`read` returns the requirement of a text; it raises ValueError. `forms` is for the reference page, and `pattern`, a regular
    expression of the texts that can be read, for editors.
    """

    name: str
    read: Callable[[str], Requirement]
    forms: str
    operators: tuple[str, ...] = ("one_of", "not")
    pattern: str = ""

    def requirement(self, value: Any) -> Requirement:
        """Read the value of a condition. Raises ValueError."""
        if isinstance(value, str):
            return self.read(value)
        if isinstance(value, Mapping):
            return self._operator(value)
        if isinstance(value, Sequence):
            return self._one_of(value)
        raise ValueError("must be a text, a list of texts, or a map such as {not: ...}")

    def _one_of(self, values: Sequence[Any]) -> Requirement:
        if not 0 < len(values) <= MAX_CHOICES:
            raise ValueError(f"must have 1 to {MAX_CHOICES} values")
        return OneOf.of(self.requirement(each) for each in values)

    def _operator(self, value: Mapping[str, Any]) -> Requirement:
        known = ", ".join(self.operators)
        if len(value) != 1:
            raise ValueError(f"must be a map with exactly one of {known}")
        ((word, operand),) = value.items()
        if word not in self.operators:
            raise ValueError(f"{word[:40]!r} is not one of {known}")
        match word:
            case "not":
                return Not(self.requirement(operand))
            case "one_of":
                if not isinstance(operand, Sequence) or isinstance(operand, str):
                    raise ValueError("one_of must be a list")
                return self._one_of(operand)
            case _:
                if not isinstance(operand, str):
                    raise ValueError(f"{word} must be a text")
                return _OPERATORS[word](operand)


def _glob(text: str) -> Matches:
    try:
        return Matches(Glob.compile(text))
    except PatternError as error:
        raise ValueError(error.message) from None


def _text(text: str) -> Requirement:
    if not text:
        raise ValueError('is empty; write a name, or a glob such as "ci-*"')
    if text[0] in "<>":
        raise ValueError(f"{text[:40]!r} compares a text with a number; write a name or a glob")
    return _glob(text) if _WILDCARDS & set(text) else Equals(text)


def _member(text: str) -> Requirement:
    return AnyMember(_text(text))


def _range(text: str) -> Between | None:
    """Read `> 5`, `>= 5`, `< 5`, `<= 5` or `1..5`; None for another text. Raises ValueError."""
    found = _COMPARED.fullmatch(text.strip())
    if found is not None:
        number = number_in(found[2])
        if number is None:
            raise ValueError(f"{found[2][:40]!r} is not a number; write for example {found[1]} 1000")
        return Between(
            low=number if found[1][0] == ">" else -math.inf,
            high=number if found[1][0] == "<" else math.inf,
            includes_low=found[1] != ">",
            includes_high=found[1] != "<",
        )
    span = _RANGE.fullmatch(text.strip()) if len(text) <= MAX_RANGE else None
    low, high = (number_in(span[1]), number_in(span[2])) if span is not None else (None, None)
    if low is None or high is None:
        return None
    if low > high:
        raise ValueError(f"{text[:40]!r} begins after its end; write the smaller number first")
    return Between(low, high)


def _argument(text: str) -> Requirement:
    if not text:
        return Equals("")
    found = _range(text)
    if found is not None:
        return found
    return _glob(text) if _WILDCARDS & set(text) else Equals(text)


def _length(text: str) -> Length:
    number = number_in(text)
    found = Between(number, number) if number is not None else _range(text)
    if found is None:
        raise ValueError(f'{text[:40]!r} is not a length; write for example {{length: "> 1000"}}')
    return Length(found)


def _boolean(text: str) -> Equals:
    word = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(text.lower(), text.lower())
    if word not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is not true or false")
    return Equals(word)


def _present(text: str) -> Present:
    return Present(_boolean(text).text == "true")


OPERATORS: Final[Mapping[str, str]] = {
    "equals": "exactly this text, also if it looks like a glob or a range",
    "glob": "a text that the glob matches",
    "one_of": "any of the values of a list; the same as a list",
    "not": "anything but this value, which may have any form",
    "length": "the number of characters of a text, or of elements of a list or map",
    "present": "whether there is a value other than `null`",
}
"""What each means, for the reference page and editors."""
_OPERATORS: Final[Mapping[str, Callable[[str], Requirement]]] = {
    "equals": Equals,
    "glob": _glob,
    "length": _length,
    "present": _present,
}


def _spelled(*words: str) -> str:
    """Return a regular expression of words in any case."""
    return f"^({'|'.join(''.join(f'[{letter.upper()}{letter}]' for letter in word) for word in words)})$"


TEXT: Final = FactKind("text", _text, "a name or a glob", ("equals", "glob", "one_of", "not"))
SET: Final = FactKind("set", _member, "a name or a glob that some member matches")
BOOLEAN: Final = FactKind(
    "boolean", _boolean, "`true` or `false`", pattern=_spelled("true", "false", "yes", "no", "on", "off")
)
TIME: Final = FactKind(
    "time",
    time_of_day,
    "`08:00-18:00 Europe/Berlin`, or `outside 08:00-18:00 Europe/Berlin`",
    pattern=rf"^\s*{TIME_FORM}\s*$",
)
ARGUMENT: Final = FactKind(
    "argument",
    _argument,
    'a value, a glob, or a range such as `"> 1000"` and `1..5`',
    ("equals", "glob", "one_of", "not", "length", "present"),
)


def choice(words: Iterable[str]) -> FactKind:
    """A fact that is one of some words."""
    known = tuple(words)

    def read(text: str) -> OnScale:
        if text not in known:
            raise ValueError(f"{text[:40]!r} is not one of {', '.join(known)}")
        return OnScale(frozenset({text}), text)

    return FactKind("choice", read, " or ".join(f"`{word}`" for word in known), pattern=f"^({'|'.join(known)})$")


def scale(words: Iterable[str]) -> FactKind:
    """A fact that is one of some words in order, of which a condition may require at least or at most one."""
    known = tuple(words)

    def read(text: str) -> OnScale:
        found = _COMPARED.fullmatch(text.strip())
        sign, word = (found[1], found[2]) if found is not None else ("", text.strip())
        if word not in known:
            raise ValueError(f"{word[:40]!r} is not one of {', '.join(known)} (in this order)")
        place = known.index(word)
        chosen = {
            "": known[place : place + 1],
            ">": known[place + 1 :],
            ">=": known[place:],
            "<": known[:place],
            "<=": known[: place + 1],
        }[sign]
        if not chosen:
            raise ValueError(f"{text[:40]!r} is never met")
        return OnScale(frozenset(chosen), f"{sign} {word}".strip())

    order = " < ".join(f"`{word}`" for word in known)
    pattern = rf"^\s*(>=|<=|>|<)?\s*({'|'.join(known)})\s*$"
    return FactKind("scale", read, f'{order}; also `">= {known[-2]}"`', pattern=pattern)
