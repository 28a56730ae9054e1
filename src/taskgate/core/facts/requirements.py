"""What a condition requires of the value of a fact. A value of another type, or one that is too large, is neither met nor unmet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from taskgate.core.facts.truth import MISSING, Truth
from taskgate.core.globs import AnyOf, Glob

LONGEST_TEXT: Final = 65_536
"""Longer texts are not compared with a glob."""


class Requirement(Protocol):
    """One requirement."""

    def truth(self, value: Any) -> Truth:
        """Return whether the value meets it."""

    def __str__(self) -> str:
        """Return it as a phrase after the name of the fact, such as `is reads` or `> 1000`."""


class Equals(msgspec.Struct, frozen=True):
    """The value, or the text that stands for it: `5` is the number and the text, `true` the boolean and the text."""

    text: str

    def truth(self, value: Any) -> Truth:
        if isinstance(value, str):
            return Truth.of(value == self.text)
        if isinstance(value, bool):
            return Truth.of(self.text == ("true" if value else "false"))
        if isinstance(value, int | float):
            number = number_in(self.text)
            return Truth.of(number is not None and number == value)
        if value is None or value is MISSING:
            return Truth.of(value is None and self.text == "null")
        return Truth.UNKNOWN

    def __str__(self) -> str:
        return f"is {self.text}"


class Matches(msgspec.Struct, frozen=True):
    """A text that the glob matches."""

    glob: Glob

    def truth(self, value: Any) -> Truth:
        if value is None or value is MISSING:
            return Truth.NO
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            return Truth.UNKNOWN
        return Truth.of(self.glob.matches(value))

    def __str__(self) -> str:
        return f"matches {self.glob.text}"


class Between(msgspec.Struct, frozen=True):
    """A number within bounds. A text is not compared, even if it looks like a number."""

    low: int | float = -math.inf
    high: int | float = math.inf
    includes_low: bool = True
    includes_high: bool = True

    def truth(self, value: Any) -> Truth:
        if value is None or value is MISSING:
            return Truth.NO
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Truth.UNKNOWN
        above = value >= self.low if self.includes_low else value > self.low
        below = value <= self.high if self.includes_high else value < self.high
        return Truth.of(above and below)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'>=' if self.includes_low else '>'} {_shown(self.low)}"
        if self.low == -math.inf:
            return f"{'<=' if self.includes_high else '<'} {_shown(self.high)}"
        return f"is in {_shown(self.low)}..{_shown(self.high)}"


class Length(msgspec.Struct, frozen=True):
    """The number of characters of a text, or of elements of a list or map."""

    test: Between

    def truth(self, value: Any) -> Truth:
        if value is None or value is MISSING:
            return Truth.NO
        if not isinstance(value, str | Sequence | Mapping):
            return Truth.UNKNOWN
        return self.test.truth(len(value))

    def __str__(self) -> str:
        return f"has a length that {self.test}" if str(self.test).startswith("is") else f"has a length {self.test}"


class Present(msgspec.Struct, frozen=True):
    """Whether there is a value at all; null counts as none."""

    wanted: bool

    def truth(self, value: Any) -> Truth:
        return Truth.of((value is not None and value is not MISSING) == self.wanted)

    def __str__(self) -> str:
        return "is given" if self.wanted else "is not given"


class OneOf(msgspec.Struct, frozen=True, eq=False):
    """Any of several. Texts, numbers and globs among them are looked up at once: there may be a thousand, and an argument may have
    thousands of elements.
    """

    tests: tuple[Requirement, ...]
    texts: frozenset[str]
    numbers: frozenset[int | float]
    globs: AnyOf
    rest: tuple[Requirement, ...]

    @classmethod
    def of(cls, tests: Iterable[Requirement]) -> OneOf:
        every = tuple(tests)
        texts = frozenset(test.text for test in every if isinstance(test, Equals))
        numbers = frozenset(number for text in texts if (number := number_in(text)) is not None)
        return cls(
            tests=every,
            texts=texts,
            numbers=numbers,
            globs=AnyOf.of(test.glob for test in every if isinstance(test, Matches)),
            rest=tuple(test for test in every if not isinstance(test, Equals | Matches)),
        )

    def __eq__(self, other: object) -> bool:
        return self.tests == other.tests if isinstance(other, OneOf) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.tests)

    def truth(self, value: Any) -> Truth:
        return max((self._of_texts(value), *(test.truth(value) for test in self.rest)))

    def _of_texts(self, value: Any) -> Truth:
        if value is MISSING:
            return Truth.NO
        if isinstance(value, str):
            is_short = len(value) <= LONGEST_TEXT
            if value in self.texts or (is_short and self.globs(value)):
                return Truth.YES
            return Truth.NO if is_short or self.globs.nothing else Truth.UNKNOWN
        if value is None:
            return Truth.of("null" in self.texts)
        if isinstance(value, bool):
            found = ("true" if value else "false") in self.texts
        elif isinstance(value, int | float):
            found = value in self.numbers
        else:
            return Truth.UNKNOWN if self.texts or not self.globs.nothing else Truth.NO
        return Truth.YES if found else Truth.NO if self.globs.nothing else Truth.UNKNOWN

    def __str__(self) -> str:
        return " or ".join(map(str, self.tests))


class Not(msgspec.Struct, frozen=True):
    test: Requirement

    def truth(self, value: Any) -> Truth:
        return self.test.truth(value).negated

    def __str__(self) -> str:
        return f"is not such that it {self.test}" if isinstance(self.test, OneOf) else _negated(str(self.test))


class AnyMember(msgspec.Struct, frozen=True):
    """Some member of a set meets it."""

    test: Requirement

    def truth(self, value: Any) -> Truth:
        return max((self.test.truth(member) for member in value), default=Truth.NO)

    def __str__(self) -> str:
        return str(self.test)


class OnScale(msgspec.Struct, frozen=True):
    """One of some words of a scale."""

    words: frozenset[str]
    text: str

    def truth(self, value: Any) -> Truth:
        return Truth.of(value in self.words)

    def __str__(self) -> str:
        return self.text if self.text[:1] in "<>" else f"is {self.text}"


def of_names(test: Requirement, text: Callable[[str], str], glob: Callable[[Glob], Glob]) -> Requirement:
    """Return the same requirement of names in another form; `text` and `glob` bring its own texts into that form."""
    if isinstance(test, Equals):
        return Equals(text(test.text))
    if isinstance(test, Matches):
        return Matches(glob(test.glob))
    if isinstance(test, Not):
        return Not(of_names(test.test, text, glob))
    assert isinstance(test, OneOf), "a name is compared with texts only"
    return OneOf.of(of_names(each, text, glob) for each in test.tests)


def number_in(text: str) -> int | float | None:
    """Return the number that a text stands for; a whole number exactly."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _shown(number: int | float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _negated(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    if verb == "is":
        return f"is not {rest}"
    return f"does not match {rest}" if verb == "matches" else f"is not {phrase}"
