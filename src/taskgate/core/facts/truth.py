"""Three-valued truth: a condition on a fact that is not known is neither met nor unmet."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final


class Truth(IntEnum):
    """Ordered, so that the smallest of several is their conjunction and the largest their disjunction."""

    NO = 0
    UNKNOWN = 1
    YES = 2

    @classmethod
    def of(cls, met: bool) -> Truth:
        return cls.YES if met else cls.NO

    @property
    def negated(self) -> Truth:
        return _NEGATED[self]


_NEGATED: Final = {Truth.NO: Truth.YES, Truth.UNKNOWN: Truth.UNKNOWN, Truth.YES: Truth.NO}


def every(truths: Iterable[Truth]) -> Truth:
    """Return whether all hold."""
    return min(truths, default=Truth.YES)


def of_elements(truths: Iterable[Truth]) -> Truth:
    """Return whether it holds for the elements of a list: unknown if it holds for some and not for others, because a rule that
    restricts means any of them and a rule that forwards means all.
    """
    found = set(truths)
    if not found:
        return Truth.NO
    return found.pop() if len(found) == 1 else Truth.UNKNOWN


class Special(Enum):
    """Values that no fact has."""

    NOT_KNOWN = "not known"
    MISSING = "missing"


NOT_KNOWN: Final = Special.NOT_KNOWN
"""The fact will be known later, or cannot be determined."""
MISSING: Final = Special.MISSING
"""There is no such argument."""
