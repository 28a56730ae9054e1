"""Mistakes in a configuration: where each one is, what is wrong, and how to correct it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_ALIKE_ENOUGH = 70


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1, and line 0 means that only the file is known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it is, which key it concerns, what is wrong, and what would be right."""

    file: str
    line: int
    column: int
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        what = f"{self.message}; {self.hint}" if self.hint else self.message
        place = Mark(self.file, self.line, self.column)
        return f"{place}: {self.key}: {what}" if self.key else f"{place}: {what}"


def problem_at(mark: Mark, key: str, message: str, hint: str = "") -> Problem:
    """A problem whose place is a mark."""
    return Problem(mark.file, mark.line, mark.column, key, message, hint)


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds every reason, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.key, p.message))
        super().__init__("\n".join(str(p) for p in self.problems))


class ReferenceFailed(Exception):
    """What a reference to a secret stands for cannot be had. Neither the reason nor the cure holds a value."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"?` when one of the known words is close to the given one, else the empty string."""
    # Imported when needed: most configurations are right, and the import costs as much as reading one.
    from rapidfuzz import fuzz, process

    best = process.extractOne(word[:100].lower(), list(known), scorer=fuzz.ratio, score_cutoff=_ALIKE_ENOUGH)
    return f'did you mean "{best[0]}"?' if best else ""


def one_of(words: Iterable[str], limit: int = 12) -> str:
    """A readable list of what is allowed, cut where it would become a wall of text."""
    all_words = list(words)
    shown = ", ".join(all_words[:limit])
    return f"{shown}, and {len(all_words) - limit} more" if len(all_words) > limit else shown
